// Sixteen lanes as several registers, where a register is narrower than 64 bytes. (Compilers take
// 64-byte vectors there too, but keep them in memory.)
#pragma once
#include <cstdint>

namespace blockscale::ISA_NAMESPACE {

#if defined(__AVX2__)
constexpr int REGISTER = 32;  // bytes
#else
constexpr int REGISTER = 16;
#endif

template <class T>
struct SplitVector {
  typedef T Part __attribute__((vector_size(REGISTER)));
  static constexpr int PARTS = 64 / REGISTER, EACH = REGISTER / int(sizeof(T));
  Part part[PARTS];

  T operator[](int lane) const { return part[lane / EACH][lane % EACH]; }
};

// Applies to registers one by one.
template <class To, class... From, class Each>
inline __attribute__((always_inline)) SplitVector<To> by_parts(Each each, const SplitVector<From>&... from) {
  SplitVector<To> to;
  for (int i = 0; i < SplitVector<To>::PARTS; ++i) to.part[i] = (typename SplitVector<To>::Part)each(from.part[i]...);
  return to;
}

template <class T>
struct Scalar {  // keeps a literal from deciding what T is
  typedef T type;
};

#define SPLIT_OPERATOR(op, Result)                                                                  \
  template <class T>                                                                               \
  inline __attribute__((always_inline)) SplitVector<Result> operator op(const SplitVector<T>& a,                 \
                                                                 const SplitVector<T>& b) {               \
    return by_parts<Result>([](auto x, auto y) { return x op y; }, a, b);                          \
  }                                                                                                \
  template <class T>                                                                               \
  inline __attribute__((always_inline)) SplitVector<Result> operator op(const SplitVector<T>& a,                 \
                                                                 typename Scalar<T>::type b) {     \
    return by_parts<Result>([b](auto x) { return x op b; }, a);                                    \
  }

SPLIT_OPERATOR(+, T)
SPLIT_OPERATOR(-, T)
SPLIT_OPERATOR(*, T)
SPLIT_OPERATOR(/, T)
SPLIT_OPERATOR(&, T)
SPLIT_OPERATOR(|, T)
SPLIT_OPERATOR(^, T)
SPLIT_OPERATOR(<<, T)
SPLIT_OPERATOR(>>, T)
SPLIT_OPERATOR(<, int32_t)
SPLIT_OPERATOR(>, int32_t)
SPLIT_OPERATOR(>=, int32_t)
SPLIT_OPERATOR(==, int32_t)
SPLIT_OPERATOR(!=, int32_t)
#undef SPLIT_OPERATOR

template <class T>
inline SplitVector<T> operator~(const SplitVector<T>& a) {
  return by_parts<T>([](auto x) { return ~x; }, a);
}

#define SPLIT_ASSIGNMENT(op)                                                                        \
  template <class T, class Other>                                                                  \
  inline __attribute__((always_inline)) SplitVector<T>& operator op##=(SplitVector<T>& a, const Other& b) {      \
    return a = a op b;                                                                             \
  }

SPLIT_ASSIGNMENT(+)
SPLIT_ASSIGNMENT(*)
SPLIT_ASSIGNMENT(|)
#undef SPLIT_ASSIGNMENT

}  // namespace blockscale::ISA_NAMESPACE
