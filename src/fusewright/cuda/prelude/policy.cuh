//: FW_LOADS
// A load with a cache policy, for every word size. The clobber orders it with stores to memory
// that the kernel writes; a read-only load needs none.
#define FW_LOADS(NAME, OP, ASM, ...)                                                     \
  __device__ __forceinline__ void NAME##_word(const unsigned char* p, unsigned char& x) {       \
    unsigned wide;                                                                              \
    ASM(OP ".u8 %0, [%1];" : "=r"(wide) : "l"(p) __VA_ARGS__);                                  \
    x = wide;                                                                                   \
  }                                                                                             \
  __device__ __forceinline__ void NAME##_word(const unsigned short* p, unsigned short& x) {     \
    ASM(OP ".u16 %0, [%1];" : "=h"(x) : "l"(p) __VA_ARGS__);                                    \
  }                                                                                             \
  __device__ __forceinline__ void NAME##_word(const unsigned* p, unsigned& x) {                 \
    ASM(OP ".u32 %0, [%1];" : "=r"(x) : "l"(p) __VA_ARGS__);                                    \
  }                                                                                             \
  __device__ __forceinline__ void NAME##_word(const uint2* p, uint2& x) {                       \
    ASM(OP ".v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(p) __VA_ARGS__);              \
  }                                                                                             \
  __device__ __forceinline__ void NAME##_word(const uint4* p, uint4& x) {                       \
    ASM(OP ".v4.u32 {%0, %1, %2, %3}, [%4];"                                                    \
        : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)                                            \
        : "l"(p) __VA_ARGS__);                                                                  \
  }                                                                                             \
  template <int N, class T>                                                                     \
  __device__ __forceinline__ fw_vec<T, N> NAME(const T* from) {                                 \
    fw_bits<N, T> bits;                                                                         \
    NAME##_word(reinterpret_cast<const typename fw_word<sizeof(T) * N>::type*>(from), bits.word); \
    return bits.vec;                                                                            \
  }

//: fw_load_cs
FW_LOADS(fw_load_cs, "ld.global.cs", asm volatile, : "memory")

//: fw_load_lu
FW_LOADS(fw_load_lu, "ld.global.lu", asm volatile, : "memory")

//: fw_load_keep
FW_LOADS(fw_load_keep, "ld.global.L1::evict_last", asm volatile, : "memory")

//: fw_load_nc
FW_LOADS(fw_load_nc, "ld.global.nc", asm)

//: fw_load_na
FW_LOADS(fw_load_na, "ld.global.nc.L1::no_allocate", asm)

//: FW_LOADS_WHERE
// A load that happens where a condition holds, for every word size; elsewhere the word stays what
// it was. One predicated instruction, so that a compiler makes no branches out of the conditions of
// loads that follow each other. The clobber orders it with stores to the same memory.
#define FW_WHERE(OP, CONDITION, REST) \
  "{\n.reg .pred holds;\nsetp.ne.s32 holds, " CONDITION ", 0;\n@holds " OP REST "\n}"
#define FW_LOADS_WHERE(NAME, OP)                                                                \
  __device__ __forceinline__ void NAME##_word(const unsigned char* p, int c, unsigned char& x) { \
    unsigned wide = x;                                                                          \
    asm volatile(FW_WHERE(OP, "%2", ".u8 %0, [%1];") : "+r"(wide) : "l"(p), "r"(c) : "memory"); \
    x = wide;                                                                                   \
  }                                                                                             \
  __device__ __forceinline__ void NAME##_word(const unsigned short* p, int c,                   \
                                              unsigned short& x) {                              \
    asm volatile(FW_WHERE(OP, "%2", ".u16 %0, [%1];") : "+h"(x) : "l"(p), "r"(c) : "memory");   \
  }                                                                                             \
  __device__ __forceinline__ void NAME##_word(const unsigned* p, int c, unsigned& x) {          \
    asm volatile(FW_WHERE(OP, "%2", ".u32 %0, [%1];") : "+r"(x) : "l"(p), "r"(c) : "memory");   \
  }                                                                                             \
  __device__ __forceinline__ void NAME##_word(const uint2* p, int c, uint2& x) {                \
    asm volatile(FW_WHERE(OP, "%3", ".v2.u32 {%0, %1}, [%2];")                                  \
                 : "+r"(x.x), "+r"(x.y)                                                         \
                 : "l"(p), "r"(c)                                                               \
                 : "memory");                                                                   \
  }                                                                                             \
  __device__ __forceinline__ void NAME##_word(const uint4* p, int c, uint4& x) {                \
    asm volatile(FW_WHERE(OP, "%5", ".v4.u32 {%0, %1, %2, %3}, [%4];")                          \
                 : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w)                                   \
                 : "l"(p), "r"(c)                                                               \
                 : "memory");                                                                   \
  }                                                                                             \
  template <int N, class T>                                                                     \
  __device__ __forceinline__ fw_vec<T, N> NAME(const T* from, bool holds,                       \
                                               const fw_vec<T, N>& otherwise) {                 \
    fw_bits<N, T> bits;                                                                         \
    bits.vec = otherwise;                                                                       \
    NAME##_word(reinterpret_cast<const typename fw_word<sizeof(T) * N>::type*>(from), holds,    \
                bits.word);                                                                     \
    return bits.vec;                                                                            \
  }

//: fw_load_where
FW_LOADS_WHERE(fw_load_where, "ld.global")

//: fw_load_cs_where
FW_LOADS_WHERE(fw_load_cs_where, "ld.global.cs")

//: fw_load_lu_where
FW_LOADS_WHERE(fw_load_lu_where, "ld.global.lu")

//: fw_load_keep_where
FW_LOADS_WHERE(fw_load_keep_where, "ld.global.L1::evict_last")

//: fw_load_nc_where
FW_LOADS_WHERE(fw_load_nc_where, "ld.global.nc")

//: fw_load_na_where
FW_LOADS_WHERE(fw_load_na_where, "ld.global.nc.L1::no_allocate")

//: fw_word_where
// A word of memory where a condition holds, the word of elements elsewhere.
template <int N, class T>
__device__ __forceinline__ typename fw_uncut<N, T>::word fw_word_where(
    const typename fw_uncut<N, T>::word* at, bool holds, const fw_vec<T, N>& otherwise) {
  fw_bits<N, T> bits;
  bits.vec = otherwise;
  return fw_load_where<1>(at, holds, fw_vec<decltype(bits.word), 1>{bits.word}).at[0];
}

//: fw_load_unaligned_where
// `fw_load_unaligned` where a condition holds, elements that are all the same elsewhere.
template <int N, int EARLY, class T, class I>
__device__ __forceinline__ fw_uncut<N, T> fw_load_unaligned_where(const T* base, I index,
                                                                  bool holds,
                                                                  const fw_vec<T, N>& otherwise) {
  const I early = EARLY < 0 ? index & (N - 1) : EARLY;
  const auto* const at =
      reinterpret_cast<const typename fw_uncut<N, T>::word*>(base + (index - early));
  return {fw_word_where<N>(at, holds, otherwise),
          fw_word_where<N>(at + (early != 0), holds, otherwise),
          static_cast<unsigned>(early) * (unsigned)sizeof(T)};
}

//: fw_load_anywhere_where
// `fw_load_anywhere` where a condition holds, elements that are all the same elsewhere.
template <int N, class T, class I>
__device__ __forceinline__ fw_uncut<N, T> fw_load_anywhere_where(const T* base, I index, bool holds,
                                                                 const fw_vec<T, N>& otherwise) {
  typedef typename fw_uncut<N, T>::word word;
  const unsigned long long at = reinterpret_cast<unsigned long long>(base + index);
  const unsigned early = (unsigned)at & (unsigned)(sizeof(word) - 1);
  const word* const words = reinterpret_cast<const word*>(at - early);
  return {fw_word_where<N>(words, holds, otherwise),
          fw_word_where<N>(words + (early != 0), holds, otherwise), early};
}

//: FW_STORES
// A store with a cache policy, for every word size.
#define FW_STORES(NAME, OP)                                                                     \
  __device__ __forceinline__ void NAME##_word(unsigned char* p, unsigned char x) {              \
    asm volatile(OP ".u8 [%0], %1;" ::"l"(p), "r"((unsigned)x) : "memory");                     \
  }                                                                                             \
  __device__ __forceinline__ void NAME##_word(unsigned short* p, unsigned short x) {            \
    asm volatile(OP ".u16 [%0], %1;" ::"l"(p), "h"(x) : "memory");                              \
  }                                                                                             \
  __device__ __forceinline__ void NAME##_word(unsigned* p, unsigned x) {                        \
    asm volatile(OP ".u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");                              \
  }                                                                                             \
  __device__ __forceinline__ void NAME##_word(uint2* p, uint2 x) {                              \
    asm volatile(OP ".v2.u32 [%0], {%1, %2};" ::"l"(p), "r"(x.x), "r"(x.y) : "memory");         \
  }                                                                                             \
  __device__ __forceinline__ void NAME##_word(uint4* p, uint4 x) {                              \
    asm volatile(OP ".v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(x.x), "r"(x.y), "r"(x.z),   \
                 "r"(x.w)                                                                       \
                 : "memory");                                                                   \
  }                                                                                             \
  template <int N, class T>                                                                     \
  __device__ __forceinline__ void NAME(T* to, const fw_vec<T, N>& value) {                      \
    fw_bits<N, T> bits;                                                                         \
    bits.vec = value;                                                                           \
    NAME##_word(reinterpret_cast<typename fw_word<sizeof(T) * N>::type*>(to), bits.word);       \
  }

//: fw_store_cs
FW_STORES(fw_store_cs, "st.global.cs")

//: fw_store_na
FW_STORES(fw_store_na, "st.global.L1::no_allocate")

//: fw_store_keep
FW_STORES(fw_store_keep, "st.global.L1::evict_last")
