//: fw_unsigned
// The unsigned type that a signed one is computed in, so that overflow wraps.
template <int NBYTES>
struct fw_unsigned {
  typedef unsigned type;
};
template <>
struct fw_unsigned<8> {
  typedef unsigned long long type;
};

//: fw_add
template <class T>
__device__ __forceinline__ T fw_add(T a, T b) {
  typedef typename fw_unsigned<sizeof(T)>::type U;
  return (T)((U)a + (U)b);
}

//: fw_sub
template <class T>
__device__ __forceinline__ T fw_sub(T a, T b) {
  typedef typename fw_unsigned<sizeof(T)>::type U;
  return (T)((U)a - (U)b);
}

//: fw_mul
template <class T>
__device__ __forceinline__ T fw_mul(T a, T b) {
  typedef typename fw_unsigned<sizeof(T)>::type U;
  return (T)((U)a * (U)b);
}

//: fw_abs
template <class T>
__device__ __forceinline__ T fw_abs(T a) {
  return a < 0 ? fw_sub<T>(0, a) : a;
}

//: fw_floordiv
// Rounds down; 0 for a zero divisor; wraps for the smallest integer over -1.
template <class T>
__device__ __forceinline__ T fw_floordiv(T a, T b) {
  if (b == 0) return 0;
  if ((T)-1 < (T)0 && b == (T)-1) return fw_sub<T>(0, a);
  const T q = (T)(a / b);
  const T r = (T)(a % b);
  return (T)(q - (r != 0 && (r < 0) != (b < 0)));
}

//: fw_rem
// Has the sign of the divisor; 0 for a zero divisor.
template <class T>
__device__ __forceinline__ T fw_rem(T a, T b) {
  if (b == 0 || ((T)-1 < (T)0 && b == (T)-1)) return 0;
  const T r = (T)(a % b);
  return r != 0 && (r < 0) != (b < 0) ? (T)(r + b) : r;
}

//: fw_floordiv_by
// By a literal of 2 and more: a product of which the upper part counts. Short integers are lifted
// above zero by a multiple of D first, of others those below zero are turned around.
template <class T, int D>
__device__ __forceinline__ T fw_floordiv_by(T a) {
  constexpr bool is_signed = (T)-1 < (T)0;
  if (sizeof(T) < 4) {
    constexpr int K = is_signed ? ((1 << (8 * sizeof(T) - 1)) + D - 1) / D : 0;
    const unsigned above = (unsigned)((int)a + K * D);
    if (sizeof(T) == 1) return (T)((int)(above * (0xfffffu / D + 1) >> 20) - K);
    return (T)((int)__umulhi(above, 0xffffffffu / D + 1) - K);
  }
  if (!is_signed) return a / (T)D;
  const int sign = (int)a >> 31;
  return (T)((int)((unsigned)((int)a ^ sign) / (unsigned)D) ^ sign);
}

//: fw_rem_by
template <class T, int D>
__device__ __forceinline__ T fw_rem_by(T a) {
  return (T)((unsigned)a - (unsigned)fw_floordiv_by<T, D>(a) * (unsigned)D);
}

//: fw_log2
__device__ constexpr int fw_log2(unsigned n) {
  return n > 1 ? 1 + fw_log2(n >> 1) : 0;
}

//: fw_over
// An index over a literal that is no power of two: the upper half of a product with the literal's
// inverse in 31 and more bits, rounded up, which is exact for what is not negative (Granlund and
// Montgomery, Division by Invariant Integers using Multiplication, 1994, theorem 4.2). Compilers
// take an instruction more, as they keep all 32 bits or the sign.
template <int D>
__device__ __forceinline__ int fw_over(int index) {
  constexpr int above = fw_log2(D);
  constexpr unsigned inverse = (unsigned)((1ull << (32 + above)) / D + 1);
  return (int)(__umulhi((unsigned)index, inverse) >> above);
}

//: fw_rest
template <int D>
__device__ __forceinline__ int fw_rest(int index) {
  return index - fw_over<D>(index) * D;
}

//: fw_pow
// By squaring, wrapping; the reciprocal, cut to an integer, for a negative exponent.
template <class T>
__device__ __forceinline__ T fw_pow(T a, T b) {
  if (b < 0) {
    if (a != 1 && a != (T)-1) return 0;
    b = (T)(b & 1);
  }
  T result = 1;
  while (b != 0) {
    if (b & 1) result = fw_mul<T>(result, a);
    a = fw_mul<T>(a, a);
    b = (T)(b >> 1);
  }
  return result;
}

//: fw_shl
template <class T>
__device__ __forceinline__ T fw_shl(T a, T b) {
  typedef typename fw_unsigned<sizeof(T)>::type U;
  return (U)b < 8 * sizeof(T) ? (T)((U)a << b) : (T)0;
}

//: fw_shr
template <class T>
__device__ __forceinline__ T fw_shr(T a, T b) {
  typedef typename fw_unsigned<sizeof(T)>::type U;
  return (U)b < 8 * sizeof(T) ? (T)(a >> b) : (T)(a < 0 ? -1 : 0);
}

//: fw_philox
// Word `index % 4` of block `offset + index / 4` of Philox4x32-10 keyed by `seed`.
// Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC11), section 2.
__device__ __forceinline__ unsigned fw_philox(unsigned long long seed, unsigned long long offset,
                                              unsigned long long index) {
  const unsigned long long block = offset + index / 4;
  unsigned c0 = (unsigned)block, c1 = (unsigned)(block >> 32), c2 = 0, c3 = 0;
  unsigned k0 = (unsigned)seed, k1 = (unsigned)(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned long long p0 = (unsigned long long)c0 * 0xD2511F53u;
    const unsigned long long p1 = (unsigned long long)c2 * 0xCD9E8D57u;
    c0 = (unsigned)(p1 >> 32) ^ c1 ^ k0;
    c1 = (unsigned)p1;
    c2 = (unsigned)(p0 >> 32) ^ c3 ^ k1;
    c3 = (unsigned)p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const unsigned lane = (unsigned)index & 3u;
  return lane < 2 ? (lane == 0 ? c0 : c1) : (lane == 2 ? c2 : c3);
}
