// SPDX-License-Identifier: Apache-2.0

// Products of the factors, a strip of columns at a time: included by the vector kernels of
// low_rank.hpp, once per instruction set.
#if defined(STRETTO_KERNELS_LOW_RANK_STRIP_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef STRETTO_KERNELS_LOW_RANK_STRIP_INL_HPP
#undef STRETTO_KERNELS_LOW_RANK_STRIP_INL_HPP
#else
#define STRETTO_KERNELS_LOW_RANK_STRIP_INL_HPP
#endif

#include "kernels/low_rank_columns-inl.hpp"

#include <array>
#include <cstddef>
#include <cstring>

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels {
namespace HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR && !HWY_HAVE_SCALABLE

/// kStrip columns of some rows of x, and what belongs to them of the factors.
struct Strip {
  float* x;  ///< null: there is no x
  std::size_t row_stride;
  std::size_t rows;
  const float* p;  ///< of its first row
  std::size_t p_stride;
  float* q;  ///< of its first column; aligned to bytes
  std::size_t q_stride;
};

/// q += x^T p for `kColumns` columns of the factors, rows in order.
template <std::size_t kColumns>
HWY_INLINE void gather_columns(const Strip& strip, std::size_t k) {
  const F32 d;
  const std::size_t lanes = hn::Lanes(d);
  const float* const p = strip.p + k * strip.p_stride;
  float* const q = strip.q + k * strip.q_stride;
  for (std::size_t part = 0; part < kStrip; part += 2 * lanes) {
    auto a = Columns<kColumns>::load(q + part, strip.q_stride);
    auto b = Columns<kColumns>::load(q + part + lanes, strip.q_stride);
    const float* x = strip.x + part;
    for (std::size_t row = 0; row < strip.rows; ++row, x += strip.row_stride) {
      const auto by = Columns<kColumns>::set(p + row, strip.p_stride);
      a.add_products(hn::LoadU(d, x), by);
      b.add_products(hn::LoadU(d, x + lanes), by);
    }
    a.store(q + part, strip.q_stride);
    b.store(q + part + lanes, strip.q_stride);
  }
}

HWY_INLINE void gather(const Strip& strip, std::size_t rank) {
  by_columns(rank, [&](auto columns, std::size_t k) { gather_columns<columns()>(strip, k); });
}

/// Goes down the rows of two vectors of columns: take.begin(column), then take.put(row, what p q^T
/// is there in the one, in the other vector), then take.end(column).
template <std::size_t kColumns, typename Take>
HWY_INLINE void multiply_columns(const Strip& strip, Take& take) {
  const std::size_t lanes = hn::Lanes(F32());
  for (std::size_t part = 0; part < kStrip; part += 2 * lanes) {
    const auto a = Columns<kColumns>::load(strip.q + part, strip.q_stride);
    const auto b = Columns<kColumns>::load(strip.q + part + lanes, strip.q_stride);
    take.begin(part);
    for (std::size_t row = 0; row < strip.rows; ++row) {
      const auto by = Columns<kColumns>::set(strip.p + row, strip.p_stride);
      take.put(row, a.dot(by), b.dot(by));
    }
    take.end(part);
  }
}

/// Copies rows of `count` floats.
inline void copy_rows(float* to,
                      std::size_t to_stride,
                      const float* from,
                      std::size_t from_stride,
                      std::size_t rows,
                      std::size_t count) {
  // Through bytes: nothing is said about how a wire's floats are aligned.
  auto* target = reinterpret_cast<std::byte*>(to);
  const auto* source = reinterpret_cast<const std::byte*>(from);
  for (std::size_t row = 0; row < rows; ++row) {
    std::memcpy(target, source, count * sizeof(float));
    target += to_stride * sizeof(float);
    source += from_stride * sizeof(float);
  }
}

/// The same for a rank whose columns do not all find a register.
template <typename Rank, typename Take>
HWY_INLINE void multiply_many(const Strip& strip, Rank rank, Take& take) {
  const F32 d;
  const std::size_t lanes = hn::Lanes(d);
  // Side by side: where rows have a power of two of columns, all columns of q fall to one set of
  // the cache.
  HWY_ALIGN std::array<float, kMostRank * kStrip> columns;
  copy_rows(columns.data(), kStrip, strip.q, strip.q_stride, rank, kStrip);
  for (std::size_t part = 0; part < kStrip; part += 2 * lanes) {
    take.begin(part);
    for (std::size_t row = 0; row < strip.rows; ++row) {
      const float* q = columns.data() + part;
      const float* p = strip.p + row;
      VF32 by = hn::Set(d, *p);
      VF32 a = hn::Mul(hn::Load(d, q), by);
      VF32 b = hn::Mul(hn::Load(d, q + lanes), by);
      for (std::size_t k = 1; k < rank; ++k) {
        q += kStrip;
        p += strip.p_stride;
        by = hn::Set(d, *p);
        a = hn::Add(a, hn::Mul(hn::Load(d, q), by));
        b = hn::Add(b, hn::Mul(hn::Load(d, q + lanes), by));
      }
      take.put(row, a, b);
    }
    take.end(part);
  }
}

template <typename Take>
HWY_INLINE void multiply(const Strip& strip, std::size_t rank, Take take) {
  switch (rank) {
    case 1:
      return multiply_columns<1>(strip, take);
    case 2:
      return multiply_columns<2>(strip, take);
    case 4:
      return multiply_columns<4>(strip, take);
    case 8:
      return multiply_many(strip, std::integral_constant<std::size_t, 8>(), take);
    default:
      return multiply_many(strip, rank, take);
  }
}

/// x -= p q^T; adds the squares of what stays to kStrip partial sums.
class Leave {
 public:
  Leave(const Strip& strip, float* squares) : strip_(strip), squares_(squares) {}

  HWY_INLINE void begin(std::size_t part) {
    x_ = strip_.x + part;
    a_ = hn::LoadU(F32(), squares_ + part);
    b_ = hn::LoadU(F32(), squares_ + part + hn::Lanes(F32()));
  }
  HWY_INLINE void put(std::size_t /*row*/, VF32 a, VF32 b) {
    const F32 d;
    a = hn::Sub(hn::LoadU(d, x_), a);
    b = hn::Sub(hn::LoadU(d, x_ + hn::Lanes(d)), b);
    hn::StoreU(a, d, x_);
    hn::StoreU(b, d, x_ + hn::Lanes(d));
    a_ = hn::Add(a_, hn::Mul(a, a));
    b_ = hn::Add(b_, hn::Mul(b, b));
    x_ += strip_.row_stride;
  }
  HWY_INLINE void end(std::size_t part) {
    hn::StoreU(a_, F32(), squares_ + part);
    hn::StoreU(b_, F32(), squares_ + part + hn::Lanes(F32()));
  }

 private:
  const Strip& strip_;
  float* const squares_;
  float* x_ = nullptr;
  VF32 a_ = hn::Zero(F32());
  VF32 b_ = hn::Zero(F32());
};

/// Writes p q^T to where a row is `stride` elements behind the last.
template <typename Format>
class Write {
 public:
  Write(std::byte* to, std::size_t stride) : to_(to), stride_(stride) {}

  HWY_INLINE void begin(std::size_t part) { part_ = part; }
  HWY_INLINE void put(std::size_t row, VF32 a, VF32 b) {
    Format::store(to_, row * stride_ + part_, within<Format>(a));
    Format::store(to_, row * stride_ + part_ + hn::Lanes(F32()), within<Format>(b));
  }
  HWY_INLINE void end(std::size_t /*part*/) {}

 private:
  std::byte* const to_;
  const std::size_t stride_;
  std::size_t part_ = 0;
};

/// The columns that do not fill a strip, filled up with zeros.
class Rest {
 public:
  Rest(const Strip& from, std::size_t count, std::size_t rank)
      : from_(from), count_(count), rank_(rank) {
    if (from.x != nullptr) {
      copy_rows(x_.data(), kStrip, from.x, from.row_stride, from.rows, count);
    }
    copy_rows(q_.data(), kStrip, from.q, from.q_stride, rank, count);
  }

  Strip strip() {
    return {x_.data(), kStrip, from_.rows, from_.p, from_.p_stride, q_.data(), kStrip};
  }
  void give_x() { copy_rows(from_.x, from_.row_stride, x_.data(), kStrip, from_.rows, count_); }
  void give_q() { copy_rows(from_.q, from_.q_stride, q_.data(), kStrip, rank_, count_); }

 private:
  const Strip& from_;
  const std::size_t count_;
  const std::size_t rank_;
  HWY_ALIGN std::array<float, kRowBlock * kStrip> x_{};
  HWY_ALIGN std::array<float, kMostRank * kStrip> q_{};
};

#endif  // HWY_SCALAR
}  // namespace HWY_NAMESPACE
}  // namespace stretto::kernels
HWY_AFTER_NAMESPACE();

#endif  // per target
