//: fw_f16
typedef unsigned short fw_f16;  // IEEE binary16, as bits

//: fw_bf16
typedef unsigned short fw_bf16;  // the upper half of a float, as bits

//: fw_e4m3
typedef unsigned char fw_e4m3;  // 8-bit float without infinities, as bits

//: fw_e5m2
typedef unsigned char fw_e5m2;  // the upper half of binary16, as bits

//: fw_f16_to_float
__device__ __forceinline__ float fw_f16_to_float(fw_f16 x) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x));
  return r;
}

//: fw_bf16_to_float
__device__ __forceinline__ float fw_bf16_to_float(fw_bf16 x) {
  return __uint_as_float((unsigned)x << 16);
}

//: fw_e5m2_to_float
__device__ __forceinline__ float fw_e5m2_to_float(fw_e5m2 x) {
  return fw_f16_to_float((fw_f16)(x << 8));
}

//: fw_e4m3_to_float
__device__ __forceinline__ float fw_e4m3_to_float(fw_e4m3 x) {
#if __CUDA_ARCH__ >= 890
  unsigned pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((unsigned short)x));
  return fw_f16_to_float((fw_f16)(pair & 0xffffu));
#else
  const unsigned magnitude = x & 0x7fu;  // exponent bias 7: the bits as a float's are 2^-120 too small
  const float value = magnitude == 0x7fu ? __uint_as_float(0x7fc00000u)
                                         : __uint_as_float(magnitude << 20) * 0x1p120f;
  return __uint_as_float(__float_as_uint(value) | (unsigned)(x & 0x80u) << 24);
#endif
}

//: fw_bf16_in_word
// Element K of the two in a word: its bits are the upper half of the float's.
template <int K>
__device__ __forceinline__ float fw_bf16_in_word(unsigned word) {
  return __uint_as_float(K ? word & 0xffff0000u : word << 16);
}

//: fw_e4m3_in_word
// Element K of the four in a word. The two of a half are widened by one instruction.
template <int K>
__device__ __forceinline__ float fw_e4m3_in_word(unsigned word) {
#if __CUDA_ARCH__ >= 890
  unsigned pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((unsigned short)(word >> (K / 2 * 16))));
  return fw_f16_to_float((fw_f16)(pair >> (K % 2 * 16)));
#else
  return fw_e4m3_to_float((fw_e4m3)(word >> (K * 8)));
#endif
}

//: fw_e5m2_in_word
// Element K of the four in a word. The two of a half become binary16 in one instruction.
template <int K>
__device__ __forceinline__ float fw_e5m2_in_word(unsigned word) {
  const unsigned pair = __byte_perm(word, 0, K < 2 ? 0x1404 : 0x3424);
  return fw_f16_to_float((fw_f16)(pair >> (K % 2 * 16)));
}

//: fw_float_to_f16
__device__ __forceinline__ fw_f16 fw_float_to_f16(float x) {
  fw_f16 r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x));
  return r;
}

//: fw_float_to_bf16
__device__ __forceinline__ fw_bf16 fw_float_to_bf16(float x) {
  fw_bf16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
  return r;
}

//: fw_round_bf16
// The nearest float of which the lower half is zero, ties to even.
__device__ __forceinline__ float fw_round_bf16(float x) {
  unsigned r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(x), "f"(0.0f));
  return __uint_as_float(r);
}

//: fw_float_to_f16x2
// Two at once, the first in the lower half.
__device__ __forceinline__ unsigned fw_float_to_f16x2(float low, float high) {
  unsigned r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

//: fw_float_to_bf16x2
// Two at once, the first in the lower half.
__device__ __forceinline__ unsigned fw_float_to_bf16x2(float low, float high) {
  unsigned r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

//: fw_float_to_small
// To nearest, ties to even, saturating to the largest finite value; MANTISSA bits, BIAS.
template <int MANTISSA, int BIAS>
__device__ __forceinline__ unsigned char fw_float_to_small(float x, float largest) {
  const unsigned sign = __float_as_uint(x) >> 24 & 0x80u;
  if (x != x) return 0x7fu | sign;
  const float a = fabsf(x) < largest ? fabsf(x) : largest;
  const float steps = __uint_as_float((unsigned)(127 + BIAS - 1 + MANTISSA) << 23);
  const unsigned drop = 23 - MANTISSA;
  unsigned bits = __float_as_uint(a);
  if (bits >> 23 <= 127 - BIAS) return sign | (unsigned)rintf(a * steps);
  bits += (1u << (drop - 1)) - 1 + (bits >> drop & 1u);
  return sign | ((bits >> drop) - ((127 - BIAS) << MANTISSA));
}

//: fw_float_to_e4m3
__device__ __forceinline__ fw_e4m3 fw_float_to_e4m3(float x) {
#if __CUDA_ARCH__ >= 890
  unsigned short r;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(0.0f), "f"(x));
  return (fw_e4m3)r;
#else
  return fw_float_to_small<3, 7>(x, 448.0f);
#endif
}

//: fw_float_to_e5m2
__device__ __forceinline__ fw_e5m2 fw_float_to_e5m2(float x) {
#if __CUDA_ARCH__ >= 890
  unsigned short r;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(0.0f), "f"(x));
  return (fw_e5m2)r;
#else
  return fw_float_to_small<2, 15>(x, 57344.0f);
#endif
}

//: fw_float_to_e4m3x2
// Two at once, the first in the lower half.
__device__ __forceinline__ unsigned short fw_float_to_e4m3x2(float low, float high) {
#if __CUDA_ARCH__ >= 890
  unsigned short r;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
  return r;
#else
  return (unsigned short)(fw_float_to_e4m3(low) | fw_float_to_e4m3(high) << 8);
#endif
}

//: fw_float_to_e5m2x2
// Two at once, the first in the lower half.
__device__ __forceinline__ unsigned short fw_float_to_e5m2x2(float low, float high) {
#if __CUDA_ARCH__ >= 890
  unsigned short r;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
  return r;
#else
  return (unsigned short)(fw_float_to_e5m2(low) | fw_float_to_e5m2(high) << 8);
#endif
}

//: fw_double_to_f16
__device__ __forceinline__ fw_f16 fw_double_to_f16(double x) {
  fw_f16 r;
  asm("cvt.rn.f16.f64 %0, %1;" : "=h"(r) : "d"(x));
  return r;
}
