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

//: fw_uncut
// The two words that hold N elements, which begin `early` bytes into the first.
template <int N, class T>
struct fw_uncut {
  typedef typename fw_word<sizeof(T) * N>::type word;
  word low, high;
  unsigned early;
};

//: fw_elements
// The elements, shifted out of their two words.
template <int N, class T>
__device__ __forceinline__ fw_vec<T, N> fw_elements(const fw_uncut<N, T>& from) {
  constexpr int count = sizeof(from.low) / 4;
  union {
    typename fw_uncut<N, T>::word both[2];
    unsigned parts[2 * count];
  } in;
  in.both[0] = from.low;
  in.both[1] = from.high;
#pragma unroll
  for (int step = count / 2; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i + step < 2 * count; ++i) {
      in.parts[i] = from.early & (4 * step) ? in.parts[i + step] : in.parts[i];
    }
  }
  union {
    unsigned parts[count];
    fw_vec<T, N> vec;
  } out;
#pragma unroll
  for (int i = 0; i < count; ++i) {
    out.parts[i] = __funnelshift_r(in.parts[i], in.parts[i + 1], (from.early & 3) * 8);
  }
  return out.vec;
}

//: fw_load_unaligned
// N elements from any index: the two words of their size that hold them. The second is read only
// where the elements reach into it. EARLY: what the index is modulo N, -1 if not known.
template <int N, int EARLY, class T, class I>
__device__ __forceinline__ fw_uncut<N, T> fw_load_unaligned(const T* base, I index) {
  typedef typename fw_uncut<N, T>::word word;
  const I early = EARLY < 0 ? index & (N - 1) : EARLY;
  const word* const at = reinterpret_cast<const word*>(base + (index - early));
  return {at[0], at[early != 0], static_cast<unsigned>(early) * (unsigned)sizeof(T)};
}

//: fw_load_within
// The same where some of the elements may lie outside of the `size` that there are: words without
// any are not read.
template <int N, int EARLY, class T, class I, class S>
__device__ __forceinline__ fw_uncut<N, T> fw_load_within(const T* base, I index, S size) {
  typedef typename fw_uncut<N, T>::word word;
  const word* const words = reinterpret_cast<const word*>(base);
  constexpr int shift = N == 2 ? 1 : N == 4 ? 2 : N == 8 ? 3 : 4;
  const I early = EARLY < 0 ? index & (N - 1) : EARLY;
  const I first = index >> shift, last = (I)((size - 1) / N);
  const I low = first < 0 ? 0 : first, next = first + (early != 0);
  const word a = words[low], b = words[next < last ? next : last];
  return {a, b, static_cast<unsigned>(early) * (unsigned)sizeof(T)};
}

//: fw_word_at
// The word that holds a byte. Addresses stay pointers: one that is made of an integer would not be
// known to be global.
template <class W, class T>
__device__ __forceinline__ const char* fw_word_at(const T* p) {
  const unsigned inside = (unsigned)reinterpret_cast<unsigned long long>(p);
  return reinterpret_cast<const char*>(p) - (inside & (unsigned)(sizeof(W) - 1));
}

//: fw_load_anywhere
// N elements from any index of memory that itself begins anywhere.
template <int N, class T, class I>
__device__ __forceinline__ fw_uncut<N, T> fw_load_anywhere(const T* base, I index) {
  typedef typename fw_uncut<N, T>::word word;
  const char* const first = fw_word_at<word>(base + index);
  const unsigned early = (unsigned)(reinterpret_cast<const char*>(base + index) - first);
  const word* const words = reinterpret_cast<const word*>(first);
  return {words[0], words[early != 0], early};
}

//: fw_load_anywhere_within
// The same where some of the elements may lie outside of the `size` that there are: words without
// any are not read.
template <int N, class T, class I, class S>
__device__ __forceinline__ fw_uncut<N, T> fw_load_anywhere_within(const T* base, I index, S size) {
  typedef typename fw_uncut<N, T>::word word;
  const char* const begin = fw_word_at<word>(base);
  const char* const last = fw_word_at<word>(base + (size - 1));
  const char* const first = fw_word_at<word>(base + index);
  const unsigned early = (unsigned)(reinterpret_cast<const char*>(base + index) - first);
  const char* const next = early ? first + sizeof(word) : first;
  const word a = *reinterpret_cast<const word*>(first < begin ? begin : first);
  const word b = *reinterpret_cast<const word*>(next < last ? next : last);
  return {a, b, early};
}

//: fw_as_words
// The same bytes in 32-bit words.
template <class T, int N>
__device__ __forceinline__ fw_vec<unsigned, N * sizeof(T) / 4> fw_as_words(fw_vec<T, N> from) {
  union {
    fw_vec<T, N> vec;
    fw_vec<unsigned, N * sizeof(T) / 4> words;
  } bits;
  bits.vec = from;
  return bits.words;
}

//: fw_store
template <int N, class T>
__device__ __forceinline__ void fw_store(T* to, const fw_vec<T, N>& value) {
  fw_bits<N, T> bits;
  bits.vec = value;
  *reinterpret_cast<typename fw_word<sizeof(T) * N>::type*>(to) = bits.word;
}

//: fw_computed
// The same value, which is computed where this stands and in no branch behind it.
template <class T, int N>
__device__ __forceinline__ fw_vec<T, N> fw_computed(const fw_vec<T, N>& value) {
  constexpr int size = sizeof(T) * N;
  union {
    fw_vec<T, N> vec;
    unsigned words[(size + 3) / 4];
    unsigned short half;
    unsigned char byte;
  } bits;
  bits.vec = value;
  if constexpr (size == 1) {
    unsigned short wide = bits.byte;
    asm volatile("" : "+h"(wide));
    bits.byte = static_cast<unsigned char>(wide);
  } else if constexpr (size == 2) {
    asm volatile("" : "+h"(bits.half));
  } else {
#pragma unroll
    for (int k = 0; k < size / 4; ++k) asm volatile("" : "+r"(bits.words[k]));
  }
  return bits.vec;
}
