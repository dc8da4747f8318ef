//: fw_exp2_approx
// Approximate; for values that end in 16 bits or fewer (PTX ISA: 2^-22 or 2 ulp).
__device__ __forceinline__ float fw_exp2_approx(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

//: fw_div_approx
// Approximate; for values that end in 16 bits or fewer (PTX ISA: 2^-22 or 2 ulp).
__device__ __forceinline__ float fw_div_approx(float a, float b) {
  float y;
  asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

//: fw_rcp_approx
// Approximate; for values that end in 16 bits or fewer (PTX ISA: 2^-22 or 2 ulp).
__device__ __forceinline__ float fw_rcp_approx(float x) {
  float y;
  asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

//: fw_sqrt_approx
// Approximate; for values that end in 16 bits or fewer (PTX ISA: 2^-22 or 2 ulp).
__device__ __forceinline__ float fw_sqrt_approx(float x) {
  float y;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

//: fw_rsqrt_approx
// Approximate; for values that end in 16 bits or fewer (PTX ISA: 2^-22 or 2 ulp).
__device__ __forceinline__ float fw_rsqrt_approx(float x) {
  float y;
  asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
