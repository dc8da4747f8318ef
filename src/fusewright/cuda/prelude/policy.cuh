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
