"""A fusion compiler for NVIDIA GPUs whose memory is planned and whose syncs are proved.

The public names are those of `fusewright.public`. They are loaded when one is first asked for, so
that importing the package costs next to nothing.
"""

import sys
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fusewright.public import *  # noqa: F403
else:
    from importlib import import_module
    from importlib.util import find_spec
    from types import ModuleType

    def _function(name):
        """A function that is called as a module of the package is, which Python puts there when it
        is imported: the attribute is the function."""

        def get(self):
            return vars(self).get(name) or getattr(import_module("fusewright.public"), name)

        def put(self, value):
            if not isinstance(value, ModuleType):
                vars(self)[name] = value

        return property(get, put)

    class _Package(ModuleType):
        """The package, whose public names are loaded when one is asked for."""

        kernel = _function("kernel")
        verify = _function("verify")

        def __getattr__(self, name):
            if name.startswith("__") and name != "__all__" and "array" not in name:
                raise AttributeError(name)  # Python asks every module for some
            if find_spec(f"fusewright.{name}") is not None:
                return import_module(f"fusewright.{name}")
            public = import_module("fusewright.public")
            missing_name = import_module("fusewright.fusion.elsewhere").missing_name
            own = vars(self)
            functions = ("kernel", "verify")
            own.update((n, getattr(public, n)) for n in public.__all__ if n not in functions)
            own["__all__"] = [*public.__all__, "__version__"]
            if name not in own:
                raise missing_name(name, "fusewright", public.__all__, public.nn.__all__)
            return own[name]

        def __dir__(self):
            return sorted({*vars(self), *self.__all__})

    sys.modules[__name__].__class__ = _Package
