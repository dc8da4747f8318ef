//: fw_shared
extern __shared__ __align__(1024) unsigned char fw_shared[];

//: fw_now
__device__ __forceinline__ unsigned long long fw_now() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

//: fw_check_time
__device__ __noinline__ void fw_late(const char* what, int slot, int parity) {
  printf("%s: slot %d, phase of parity %d, is not complete; block (%d, %d, %d), thread %d\n", what,
         slot, parity, (int)blockIdx.x, (int)blockIdx.y, (int)blockIdx.z, (int)threadIdx.x);
  __trap();
}
__device__ __forceinline__ void fw_check_time(unsigned long long since, unsigned ms,
                                              const char* what, int slot, int parity) {
  if (fw_now() - since > ms * 1000000ull) fw_late(what, slot, parity);
}

//: fw_check_turn
__device__ __noinline__ void fw_turn_late(const char* what, int index, unsigned now,
                                          unsigned value) {
  printf("%s: element %d is %u, not yet %u; block (%d, %d, %d), thread %d\n", what, index, now,
         value, (int)blockIdx.x, (int)blockIdx.y, (int)blockIdx.z, (int)threadIdx.x);
  __trap();
}
__device__ __forceinline__ void fw_check_turn(unsigned long long since, unsigned ms,
                                              const char* what, int index, unsigned now,
                                              unsigned value) {
  if (fw_now() - since > ms * 1000000ull) fw_turn_late(what, index, now, value);
}

//: fw_index_outside
__device__ unsigned fw_index_told = 0u;
__device__ __noinline__ void fw_index_outside(const char* place, long long index, int axis,
                                              long long size) {
  if (atomicExch(&fw_index_told, 1u)) return;  // one thread tells, and stops the kernel
  printf("%s: index %lld is outside axis %d of size %lld; block (%d, %d, %d), thread %d\n", place,
         index, axis, size, (int)blockIdx.x, (int)blockIdx.y, (int)blockIdx.z, (int)threadIdx.x);
  __trap();
}
__device__ __noinline__ void fw_index_outside(const char* place, const char* what) {
  if (atomicExch(&fw_index_told, 1u)) return;
  printf("%s: %s; block (%d, %d, %d), thread %d\n", place, what, (int)blockIdx.x,
         (int)blockIdx.y, (int)blockIdx.z, (int)threadIdx.x);
  __trap();
}
