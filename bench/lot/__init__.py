"""The lot: programs drawn at random over families, ranks, shapes, dtypes and layouts."""
