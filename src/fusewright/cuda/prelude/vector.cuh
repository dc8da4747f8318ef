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

//: fw_span
// The three words that hold N elements of more than 16 bytes, which begin `early` bytes into the
// first. Where they end in the second, the third is the second again.
template <int N, class T>
struct fw_span {
  uint4 words[3];
  unsigned early;
};

//: fw_run
// N elements in registers.
template <class T, int N>
struct fw_run {
  T at[N];
};

//: fw_words_of
// The 32-bit words of the elements, shifted out of the three that hold them.
template <int N, class T>
__device__ __forceinline__ fw_run<unsigned, N * sizeof(T) / 4> fw_words_of(
    const fw_span<N, T>& from) {
  constexpr int count = N * sizeof(T) / 4;
  const uint4 a = from.words[0], b = from.words[1], c = from.words[2];
  const unsigned parts[12] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, c.x, c.y, c.z, c.w};
  const bool by_two = from.early & 8, by_one = from.early & 4;
  unsigned far[10], near[9];
#pragma unroll
  for (int i = 0; i < 10; ++i) far[i] = by_two ? parts[i + 2] : parts[i];
#pragma unroll
  for (int i = 0; i < 9; ++i) near[i] = by_one ? far[i + 1] : far[i];
  fw_run<unsigned, count> out;
#pragma unroll
  for (int i = 0; i < count; ++i) {
    out.at[i] = __funnelshift_r(near[i], near[i + 1], (from.early & 3) * 8);
  }
  return out;
}

//: fw_elements_of
// The same as elements.
template <int N, class T>
__device__ __forceinline__ fw_run<T, N> fw_elements_of(const fw_span<N, T>& from) {
  union {
    fw_run<unsigned, N * sizeof(T) / 4> words;
    fw_run<T, N> elements;
  } bits;
  bits.words = fw_words_of(from);
  return bits.elements;
}

//: fw_word_within
// The number of a word, or of the nearest one that there is.
template <class I>
__device__ __forceinline__ I fw_word_within(I word, I last) {
  const I low = word < 0 ? 0 : word;
  return low < last ? low : last;
}

//: fw_load_span
// N elements of more than 16 bytes from any index. The third word is read where they reach into it.
template <int N, class T, class I>
__device__ __forceinline__ fw_span<N, T> fw_load_span(const T* base, I index) {
  constexpr int each = 16 / sizeof(T);
  const I inside = index & (each - 1);
  const unsigned early = (unsigned)inside * (unsigned)sizeof(T);
  const uint4* const at = reinterpret_cast<const uint4*>(base + (index - inside));
  return {{at[0], at[1], at[(early + N * (unsigned)sizeof(T) - 1) / 16]}, early};
}

//: fw_load_span_within
// The same where some of the elements may lie outside of the `size` that there are: words without
// any are not read.
template <int N, class T, class I, class S>
__device__ __forceinline__ fw_span<N, T> fw_load_span_within(const T* base, I index, S size) {
  constexpr int each = 16 / sizeof(T), shift = each == 2 ? 1 : each == 4 ? 2 : each == 8 ? 3 : 4;
  const uint4* const words = reinterpret_cast<const uint4*>(base);
  const unsigned early = (unsigned)(index & (each - 1)) * (unsigned)sizeof(T);
  const I first = index >> shift, last = (I)((size - 1) / each);
  const I third = first + (I)((early + N * (unsigned)sizeof(T) - 1) / 16);
  return {{words[fw_word_within<I>(first, last)], words[fw_word_within<I>(first + 1, last)],
           words[fw_word_within<I>(third, last)]},
          early};
}

//: fw_load_span_anywhere
// N elements of more than 16 bytes from any index of memory that itself begins anywhere.
template <int N, class T, class I>
__device__ __forceinline__ fw_span<N, T> fw_load_span_anywhere(const T* base, I index) {
  const char* const first = fw_word_at<uint4>(base + index);
  const unsigned early = (unsigned)(reinterpret_cast<const char*>(base + index) - first);
  const uint4* const at = reinterpret_cast<const uint4*>(first);
  return {{at[0], at[1], at[(early + N * (unsigned)sizeof(T) - 1) / 16]}, early};
}

//: fw_load_span_anywhere_within
// The same where some of the elements may lie outside of the `size` that there are: words without
// any are not read.
template <int N, class T, class I, class S>
__device__ __forceinline__ fw_span<N, T> fw_load_span_anywhere_within(const T* base, I index,
                                                                      S size) {
  const uint4* const begin = reinterpret_cast<const uint4*>(fw_word_at<uint4>(base));
  const int behind = (int)(reinterpret_cast<const char*>(base) - fw_word_at<uint4>(base));
  const I from = index + (I)(behind / (int)sizeof(T));
  const S whole = size + (S)(behind / (int)sizeof(T));
  return fw_load_span_within<N>(reinterpret_cast<const T*>(begin), from, whole);
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
