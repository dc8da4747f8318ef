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

//: fw_load_unaligned
// N elements from any address: the two words of their size that hold them, shifted by what the
// first begins too early. The second is read only where the elements reach into it.
template <int N, class T>
__device__ __forceinline__ fw_vec<T, N> fw_load_unaligned(const T* from) {
  typedef typename fw_word<sizeof(T) * N>::type word;
  constexpr int count = sizeof(word) / 4;
  const unsigned long long address = reinterpret_cast<unsigned long long>(from);
  const unsigned early = static_cast<unsigned>(address) & (sizeof(word) - 1);
  const word* const at = reinterpret_cast<const word*>(address - early);
  union {
    word both[2];
    unsigned parts[2 * count];
  } in;
  in.both[0] = at[0];
  in.both[1] = at[early != 0];
#pragma unroll
  for (int step = count / 2; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i + step < 2 * count; ++i) {
      in.parts[i] = early & (4 * step) ? in.parts[i + step] : in.parts[i];
    }
  }
  union {
    unsigned parts[count];
    fw_vec<T, N> vec;
  } out;
#pragma unroll
  for (int i = 0; i < count; ++i) {
    out.parts[i] = __funnelshift_r(in.parts[i], in.parts[i + 1], (early & 3) * 8);
  }
  return out.vec;
}

//: fw_store
template <int N, class T>
__device__ __forceinline__ void fw_store(T* to, const fw_vec<T, N>& value) {
  fw_bits<N, T> bits;
  bits.vec = value;
  *reinterpret_cast<typename fw_word<sizeof(T) * N>::type*>(to) = bits.word;
}
