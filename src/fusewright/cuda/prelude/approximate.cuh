//: fw_exp2_approx
// Approximate; for values that end in 16 bits or fewer (PTX ISA: 2^-22 or 2 ulp).
__device__ __forceinline__ float fw_exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

//: fw_exp_added
// exp(x) for sums, x at most 0: 2^t for t = x * log2(e) rounded down, times 1 + d, where d, what t
// lacks of x, is 0 or just above it. Good to 2^-22 (PTX ISA, ex2.approx) and |x| * 2^-26 (log2(e) as
// a float); subnormal results are 0. Saturation makes the d of -inf 0, not NaN; NaN stays NaN.
__device__ __forceinline__ float fw_exp_added(float x) {
  float y, d;
  const float t = __fmul_rd(x, 1.4426950408889634f);
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(t));
  asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(d) : "f"(t), "f"(-0.6931471805599453f), "f"(x));
  return fmaf(y, d, y);
}

//: fw_div_approx
// Approximate; for values that end in 16 bits or fewer (PTX ISA: 2^-22 or 2 ulp).
__device__ __forceinline__ float fw_div_approx(float a, float b) {
  float y;
  asm("div.full.ftz.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

//: fw_rcp_approx
// Approximate; for values that end in 16 bits or fewer (PTX ISA: 2^-22 or 2 ulp).
__device__ __forceinline__ float fw_rcp_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

//: fw_sqrt_approx
// Approximate; for values that end in 16 bits or fewer (PTX ISA: 2^-22 or 2 ulp).
__device__ __forceinline__ float fw_sqrt_approx(float x) {
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

//: fw_rsqrt_approx
// Approximate; for values that end in 16 bits or fewer (PTX ISA: 2^-22 or 2 ulp).
__device__ __forceinline__ float fw_rsqrt_approx(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

//: fw_erf_approx
// Error below 1.5e-7. Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
__device__ __forceinline__ float fw_erf_approx(float x) {
  const float z = fabsf(x);
  const float t = fw_rcp_approx(fmaf(0.3275911f, z, 1.0f));
  float p = fmaf(1.061405429f, t, -1.453152027f);
  p = fmaf(p, t, 1.421413741f);
  p = fmaf(p, t, -0.284496736f);
  p = fmaf(p, t, 0.254829592f);
  const float e = fw_exp2_approx(z * z * -1.4426950408889634f);
  return copysignf(fmaf(-p * t, e, 1.0f), x);
}

//: fw_near_zero
// Whether a series takes the place of a difference that cancels: within `end` of zero.
__device__ __forceinline__ float fw_near_zero(float x, float end, float series, float far) {
  return fabsf(x) < end ? series : far;
}

//: fw_log_series
// log(1 + x) for |x| < 1/16, good to 2^-20: the minimax polynomial of its degree.
__device__ __forceinline__ float fw_log_series(float x) {
  float p = fmaf(x, -0.2506938874721527f, 0.33398211002349854f);
  p = fmaf(p, x, -0.4999995827674866f);
  return fmaf(p * x, x, x);
}

//: fw_log_approx
// Good to 2^-18: an absolute error of 2^-22 (PTX ISA, lg2.approx) where the result is 1/16 or more.
__device__ __forceinline__ float fw_log_approx(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  const float d = x - 1.0f;
  return fw_near_zero(d, 0.0625f, fw_log_series(d), y * 0.6931471805599453f);
}

//: fw_log1p_approx
// As `fw_log_approx`; 1 + x is never subnormal.
__device__ __forceinline__ float fw_log1p_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + x));
  return fw_near_zero(x, 0.0625f, fw_log_series(x), y * 0.6931471805599453f);
}

//: fw_expm1_approx
// Good to 2^-18: an absolute error of 2^-22 of e^x where the result is 1/8 or more, else the minimax
// polynomial of its degree.
__device__ __forceinline__ float fw_expm1_approx(float x) {
  float p = fmaf(x, 0.04165922850370407f, 0.16677454113960266f);
  p = fmaf(p, x, 0.5000002980232239f);
  const float far = fw_exp2_approx(x * 1.4426950408889634f) - 1.0f;
  return fw_near_zero(x, 0.125f, fmaf(p * x, x, x), far);
}

//: fw_tanh_approx
// Good to 2^-18: 1 - 2 / (1 + e^2x) with an absolute error of 2^-21 where the result is about 1/4 or
// more, else the minimax polynomial of its degree.
__device__ __forceinline__ float fw_tanh_approx(float x) {
  const float z = x * x;
  const float p = fmaf(z, 0.12876421213150024f, -0.33324572443962097f);
  const float far = fmaf(-2.0f, fw_rcp_approx(1.0f + fw_exp2_approx(x * 2.8853900817779268f)), 1.0f);
  return fw_near_zero(x, 0.25f, fmaf(p * z, x, x), far);
}
