//: fw_vec
// N elements that move as one access of N * sizeof(T) bytes.
template <class T, int N>
struct alignas(sizeof(T) * N) fw_vec {
  T at[N];
};

//: fw_word
// The machine word of that many bytes, so that the access is one instruction.
template <int NBYTES>
struct fw_word;
template <>
struct fw_word<1> {
  typedef unsigned char type;
};
template <>
struct fw_word<2> {
  typedef unsigned short type;
};
template <>
struct fw_word<4> {
  typedef unsigned type;
};
template <>
struct fw_word<8> {
  typedef uint2 type;
};
template <>
struct fw_word<16> {
  typedef uint4 type;
};

//: fw_bits
// The same bytes seen as a word and as elements.
template <int N, class T>
union fw_bits {
  typename fw_word<sizeof(T) * N>::type word;
  fw_vec<T, N> vec;
};

//: fw_load
template <int N, class T>
__device__ __forceinline__ fw_vec<T, N> fw_load(const T* from) {
  fw_bits<N, T> bits;
  bits.word = *reinterpret_cast<const typename fw_word<sizeof(T) * N>::type*>(from);
  return bits.vec;
}

//: fw_store
template <int N, class T>
__device__ __forceinline__ void fw_store(T* to, const fw_vec<T, N>& value) {
  fw_bits<N, T> bits;
  bits.vec = value;
  *reinterpret_cast<typename fw_word<sizeof(T) * N>::type*>(to) = bits.word;
}
