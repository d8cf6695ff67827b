#include "kernels/cross_entropy.h"

#include <cmath>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "kernels/composite.h"
#include "kernels/cpu/dispatch.h"

namespace tetra {
namespace {

void check_logits(const at::Tensor& logits) {
  require(logits.dim() == 2 && (logits.size(1) <= 1 || logits.stride(1) == 1),
          "cross_entropy: logits of sizes {} and strides {}; [T, V] with dense rows is needed", logits.sizes(),
          logits.strides());
}

void check_labels(const at::Tensor& logits, const at::Tensor& labels) {
  require(
      labels.dim() == 1 && labels.size(0) == logits.size(0) && labels.scalar_type() == at::kLong &&
          labels.is_contiguous() && labels.device() == logits.device(),
      "cross_entropy: labels of {} with sizes {} on {}, for logits of sizes {} on {}; contiguous int64 [T] is needed",
      at::toString(labels.scalar_type()), labels.sizes(), labels.device().str(), logits.sizes(), logits.device().str());
}

void check_statistic(const at::Tensor& logits, const at::Tensor& x, const char* name) {
  require(x.dim() == 1 && x.size(0) == logits.size(0) && x.is_contiguous() &&
              x.scalar_type() == cpu::accumulate_type(logits.scalar_type()),
          "cross_entropy: {} of {} with sizes {}, for logits of {} with sizes {}; fp32 (fp64 for fp64) [T] is needed",
          name, at::toString(x.scalar_type()), x.sizes(), at::toString(logits.scalar_type()), logits.sizes());
}

at::Tensor statistics(const at::Tensor& logits, at::IntArrayRef sizes) {
  return at::empty(sizes, logits.options().dtype(cpu::accumulate_type(logits.scalar_type())));
}

}  // namespace

at::Tensor cross_entropy_row_max(const at::Tensor& logits) {
  const at::NoGradGuard no_grad;
  check_logits(logits);
  if (!cpu::on_cpu(logits)) {
    return composite::cross_entropy_row_max(logits);
  }
  const int64_t rows = logits.size(0), width = logits.size(1), stride = logits.stride(0);
  at::Tensor result = statistics(logits, {rows});
  cpu::with_type(logits.scalar_type(), "cross_entropy", [&](const auto& loops, auto zero) {
    using T = decltype(zero);
    auto* max = cpu::output<cpu::Acc<T>>(result);
    cpu::share_out(rows, width, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        max[row] = loops.row_max(cpu::input<T>(logits) + row * stride, width);
      }
    });
  });
  return result;
}

at::Tensor cross_entropy_partials(const at::Tensor& logits, const at::Tensor& labels, int64_t vocab_begin,
                                  const at::Tensor& row_max) {
  const at::NoGradGuard no_grad;
  check_logits(logits);
  check_labels(logits, labels);
  check_statistic(logits, row_max, "row_max");
  if (!cpu::on_cpu(logits)) {
    return composite::cross_entropy_partials(logits, labels, vocab_begin, row_max);
  }
  const int64_t rows = logits.size(0), width = logits.size(1), stride = logits.stride(0);
  at::Tensor result = statistics(logits, {2, rows});
  const int64_t* label = cpu::input<int64_t>(labels);
  cpu::with_type(logits.scalar_type(), "cross_entropy", [&](const auto& loops, auto zero) {
    using T = decltype(zero);
    using A = cpu::Acc<T>;
    const A* max = cpu::input<A>(row_max);
    A *sum = cpu::output<A>(result), *target = sum + rows;
    cpu::share_out(rows, width, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* x = cpu::input<T>(logits) + row * stride;
        const int64_t local = label[row] - vocab_begin;
        const bool here = label[row] != kIgnoreIndex && local >= 0 && local < width;
        sum[row] = loops.sum_exp(x, width, max[row]);
        target[row] = here ? loops.widen(x + local) - max[row] : A(0);
      }
    });
  });
  return result;
}

at::Tensor cross_entropy_grad_(at::Tensor& logits, const at::Tensor& labels, int64_t vocab_begin,
                               const at::Tensor& row_max, const at::Tensor& row_sum, double scale) {
  const at::NoGradGuard no_grad;
  check_logits(logits);
  check_labels(logits, labels);
  check_statistic(logits, row_max, "row_max");
  check_statistic(logits, row_sum, "row_sum");
  if (!cpu::on_cpu(logits)) {
    composite::cross_entropy_grad_(logits, labels, vocab_begin, row_max, row_sum, scale);
    return logits;
  }
  const int64_t rows = logits.size(0), width = logits.size(1), stride = logits.stride(0);
  const int64_t* label = cpu::input<int64_t>(labels);
  cpu::with_type(logits.scalar_type(), "cross_entropy", [&](const auto& loops, auto zero) {
    using T = decltype(zero);
    using A = cpu::Acc<T>;
    const A *max = cpu::input<A>(row_max), *sum = cpu::input<A>(row_sum), factor = static_cast<A>(scale);
    cpu::share_out(rows, width, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        T* x = cpu::output<T>(logits) + row * stride;
        if (label[row] == kIgnoreIndex) {
          std::fill_n(x, width, T{});
          continue;
        }
        const int64_t local = label[row] - vocab_begin;
        const bool here = local >= 0 && local < width;
        // The target's element is rounded once, after the subtraction: near 1 a 16-bit probability has no digits left.
        const A target = here ? std::exp(loops.widen(x + local) - max[row]) / sum[row] - A(1) : A(0);
        loops.softmax_row(x, width, max[row], factor / sum[row]);
        if (here) {
          loops.narrow(x + local, target * factor);
        }
      }
    });
  });
  return logits;
}

}  // namespace tetra
