//: fw_max
// The larger; NaN when either is.
__device__ __forceinline__ float fw_max(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
__device__ __forceinline__ double fw_max(double a, double b) {
  return a > b || a != a ? a : b;
}

//: fw_min
// The smaller; NaN when either is.
__device__ __forceinline__ float fw_min(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
__device__ __forceinline__ double fw_min(double a, double b) {
  return a < b || a != a ? a : b;
}

//: fw_sign
// NaN for NaN, 0 for both zeros.
template <class T>
__device__ __forceinline__ T fw_sign(T x) {
  return x != x ? x : (T)((x > 0) - (x < 0));
}

//: fw_isinf
template <class T>
__device__ __forceinline__ bool fw_isinf(T x) {
  return x - x != x - x && x == x;
}

//: fw_isfinite
template <class T>
__device__ __forceinline__ bool fw_isfinite(T x) {
  return x - x == 0;
}

//: fw_signbit
__device__ __forceinline__ bool fw_signbit(float x) { return __float_as_int(x) < 0; }
__device__ __forceinline__ bool fw_signbit(double x) { return __double_as_longlong(x) < 0; }

//: fw_fmod
__device__ __forceinline__ float fw_fmod(float a, float b) { return fmodf(a, b); }
__device__ __forceinline__ double fw_fmod(double a, double b) { return fmod(a, b); }

//: fw_float_rem
// Has the sign of the divisor.
template <class T>
__device__ __forceinline__ T fw_float_rem(T a, T b) {
  const T r = fw_fmod(a, b);
  if (r == 0) return fw_signbit(b) ? -(T)0 : (T)0;
  return (r < 0) != (b < 0) ? r + b : r;
}

//: fw_float_floordiv
// The integer q for which a = q b + rem(a, b), exact where it fits; a / b for a zero divisor and
// for an infinite operand.
template <class T>
__device__ __forceinline__ T fw_float_floordiv(T a, T b) {
  if (b == 0 || a - a != 0 || b - b != 0) return a / b;
  const T r = fw_fmod(a, b);
  T q = (a - r) / b;
  if (r != 0 && (r < 0) != (b < 0)) q -= 1;
  if (q == 0) return fw_signbit(a / b) ? -(T)0 : (T)0;
  const T down = sizeof(T) == 4 ? (T)floorf((float)q) : (T)floor((double)q);
  return q - down > (T)0.5 ? down + 1 : down;
}

//: fw_reciprocal
// 1 / x to the nearest, without a branch: an approximation to one ulp (PTX ISA, rcp.approx) and a
// step of Newton's method, as the compiler's own division takes for operands of usual sizes. What
// the step cannot improve, of zeros, infinities and NaN, stays; subnormal results are within an ulp.
__device__ __forceinline__ float fw_reciprocal(float x) {
  float r;
  asm("rcp.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  const float rest = fmaf(-x, r, 1.0f);
  return fabsf(rest) < 1.0f ? fmaf(r, rest, r) : r;
}

//: fw_divide
// a / b to the nearest. The compiler divides what is not of a usual size by a call, zeros among it,
// of which data is full: a zero takes the quotient of another numerator, and is multiplied by it:
// 0 of numbers, NaN of 0 and NaN.
__device__ __forceinline__ float fw_divide(float a, float b) {
  const float q = (a == 0.0f ? 0x1p-24f : a) / b;
  return a == 0.0f ? a * q : q;
}

//: fw_root
// The square root to the nearest, of zeros without the call that takes it of unusual sizes.
__device__ __forceinline__ float fw_root(float x) {
  const float root = sqrtf(x == 0.0f ? 1.0f : x);
  return x == 0.0f ? x : root;
}

//: fw_logaddexp
// log(exp(a) + exp(b)) without overflow.
__device__ __forceinline__ float fw_logaddexp(float a, float b) {
  if (a == b) return a + 0.693147180559945309f;
  const float d = a - b;
  return d != d ? d : (d > 0 ? a : b) + log1pf(expf(-fabsf(d)));
}
__device__ __forceinline__ double fw_logaddexp(double a, double b) {
  if (a == b) return a + 0.693147180559945309;
  const double d = a - b;
  return d != d ? d : (d > 0 ? a : b) + log1p(exp(-fabs(d)));
}
