//: fw_tensor_map
struct alignas(64) fw_tensor_map {
  unsigned long long words[16];
};

//: fw_descriptor
// Halves of a matrix descriptor (PTX ISA, "Matrix Descriptor Format"); only the lower one moves.
__device__ __forceinline__ unsigned long long fw_descriptor(unsigned low, unsigned high) {
  unsigned long long both;
  asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "r"(low), "r"(high));
  return both;
}

//: fw_chunk
// An address as descriptors hold it, bits 4 to 17: in a cluster the number of the block stands above,
// where a descriptor has the distance of panels.
__device__ __forceinline__ unsigned fw_chunk(const void* p) {
  return ((unsigned)__cvta_generic_to_shared(p) & 0x3ffffu) >> 4;
}

//: fw_keep
// Keeps the compiler from moving uses of accumulators over what stands here.
template <int n>
__device__ __forceinline__ void fw_keep(float (&d)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

//: fw_finished
// The same value, by an addition that nothing is joined with.
__device__ __forceinline__ float fw_finished(float x) {
  asm("add.f32 %0, %0, 0f80000000;" : "+f"(x));
  return x;
}

//: fw_pair
template <typename T>
__device__ __forceinline__ unsigned fw_pair(const T* r) {
  return (unsigned)r[0] | (unsigned)r[1] << 16;
}

//: fw_ldmatrix
template <int count, bool transposed, typename T>
__device__ __forceinline__ void fw_ldmatrix(T* r, const void* p) {
  const unsigned at = (unsigned)__cvta_generic_to_shared(p);
  unsigned w[4];
  if constexpr (count == 1 && !transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                 : "=r"(w[0]) : "r"(at) : "memory");
  if constexpr (count == 2 && !transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(w[0]), "=r"(w[1]) : "r"(at) : "memory");
  if constexpr (count == 4 && !transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(at) : "memory");
  if constexpr (count == 1 && transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                 : "=r"(w[0]) : "r"(at) : "memory");
  if constexpr (count == 2 && transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(w[0]), "=r"(w[1]) : "r"(at) : "memory");
  if constexpr (count == 4 && transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(at) : "memory");
#pragma unroll
  for (int i = 0; i < count; ++i) {
    r[2 * i] = (T)w[i];
    r[2 * i + 1] = (T)(w[i] >> 16);
  }
}

//: fw_stmatrix
template <int count, bool transposed, typename T>
__device__ __forceinline__ void fw_stmatrix(void* p, const T* r) {
  const unsigned at = (unsigned)__cvta_generic_to_shared(p);
  unsigned w[4];
#pragma unroll
  for (int i = 0; i < count; ++i) w[i] = fw_pair(r + 2 * i);
  if constexpr (count == 1 && !transposed)
    asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};"
                 ::"r"(at), "r"(w[0]) : "memory");
  if constexpr (count == 2 && !transposed)
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};"
                 ::"r"(at), "r"(w[0]), "r"(w[1]) : "memory");
  if constexpr (count == 4 && !transposed)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(at), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
  if constexpr (count == 1 && transposed)
    asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};"
                 ::"r"(at), "r"(w[0]) : "memory");
  if constexpr (count == 2 && transposed)
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};"
                 ::"r"(at), "r"(w[0]), "r"(w[1]) : "memory");
  if constexpr (count == 4 && transposed)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(at), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
}

//: fw_elected
__device__ __forceinline__ bool fw_elected() {
  unsigned mine;
  asm volatile("{\n\t.reg .pred p;\n\telect.sync _|p, 0xffffffff;\n\tselp.u32 %0, 1, 0, p;\n\t}"
               : "=r"(mine));
  return mine != 0;
}
