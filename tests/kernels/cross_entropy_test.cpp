// Cross entropy in three steps, over whole and cut vocabularies.

#include "kernels/cross_entropy.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/where.h>

#include "kernels/composite.h"
#include "kernels/error.h"
#include "tests/kernels/reference.h"

namespace tetra::test {
namespace {

/// Loss of each token (0 for ignored ones) and the logits' gradient of scale * their sum.
struct Result {
  at::Tensor losses, grad;
};

Result plain(const at::Tensor& logits, const at::Tensor& labels, double scale) {
  const at::Tensor x = logits.detach().to(at::kDouble).requires_grad_(true);
  const at::Tensor counted = labels != kIgnoreIndex;
  const at::Tensor index = at::where(counted, labels, labels * 0).unsqueeze(1);
  const at::Tensor losses = -at::log_softmax(x, 1).gather(1, index).squeeze(1) * counted;
  (losses.sum() * scale).backward();
  return {losses.detach(), x.grad()};
}

/// The vocabulary cut at `cuts`, as the ranks of a tensor-parallel group hold it; their sums are added here.
Result ours(const at::Tensor& logits, const at::Tensor& labels, double scale, std::vector<int64_t> cuts) {
  cuts.insert(cuts.begin(), 0);
  cuts.push_back(logits.size(1));
  Tensors parts;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    parts.push_back(logits.slice(1, cuts[i], cuts[i + 1]).clone());
  }
  at::Tensor max = cross_entropy_row_max(parts[0]);
  for (const at::Tensor& part : parts) {
    max = at::maximum(max, cross_entropy_row_max(part));
  }
  at::Tensor sums = cross_entropy_partials(parts[0], labels, 0, max);
  for (size_t i = 1; i < parts.size(); ++i) {
    sums = sums + cross_entropy_partials(parts[i], labels, cuts[i], max);
  }
  const at::Tensor losses = (sums[0].log() - sums[1]) * (labels != kIgnoreIndex);
  const at::Tensor sum = sums[0].contiguous();
  for (size_t i = 0; i < parts.size(); ++i) {
    cross_entropy_grad_(parts[i], labels, cuts[i], max, sum, scale);
  }
  return {losses, at::cat(parts, 1)};
}

at::Tensor some_labels(int64_t tokens, int64_t vocab) {
  at::Tensor labels = at::randint(vocab, {tokens}, at::kLong);
  labels[tokens / 2] = kIgnoreIndex;
  labels[0] = vocab - 1;
  labels[tokens - 1] = 0;
  return labels;
}

TEST(CrossEntropy, agrees_with_the_plain_composition_however_the_vocabulary_is_cut) {
  for (const Precision& p : kPrecisions) {
    for (const int64_t vocab : {3, 50, 1037}) {
      const at::Tensor logits = (4 * random({29, vocab})).to(p.type), labels = some_labels(29, vocab);
      const Result expected = plain(logits, labels, 0.125);
      for (const std::vector<int64_t>& cuts :
           {std::vector<int64_t>{}, {vocab / 3}, {1, vocab / 2, vocab}, {0, vocab - 1}}) {
        const Result actual = ours(logits, labels, 0.125, cuts);
        EXPECT_LE(distance(actual.losses, expected.losses), p.type == at::kDouble ? 1e-12 : 2e-6);
        EXPECT_LE(distance(actual.grad, expected.grad), p.tolerance);
        EXPECT_EQ(actual.grad[29 / 2].abs().max().item<double>(), 0);
      }
    }
  }
}

TEST(CrossEntropy, sure_targets_keep_their_digits_in_bf16) {
  at::Tensor logits = at::full({1, 64}, 0.0, at::kBFloat16);
  logits[0][5] = 12.0;
  const at::Tensor labels = at::full({1}, 5, at::kLong);
  const Result expected = plain(logits, labels, 1), actual = ours(logits, labels, 1, {});
  EXPECT_NEAR(actual.grad[0][5].item<double>() / expected.grad[0][5].item<double>(), 1, 1e-2);
}

TEST(CrossEntropy, survives_huge_and_masked_logits) {
  at::Tensor logits = 3e4 * random({8, 40}, at::kFloat);
  logits.slice(1, 35).fill_(-INFINITY);  // padding of the vocabulary
  const at::Tensor labels = at::randint(35, {8}, at::kLong);
  const Result actual = ours(logits, labels, 1, {20});
  EXPECT_TRUE(actual.losses.isfinite().all().item<bool>());
  EXPECT_TRUE(actual.grad.isfinite().all().item<bool>());
  EXPECT_EQ(actual.grad.slice(1, 35).abs().max().item<double>(), 0);
}

TEST(CrossEntropy, nan_is_not_hidden) {
  at::Tensor logits = random({4, 50}, at::kFloat);
  logits[1][17] = NAN;
  const Result actual = ours(logits, some_labels(4, 50), 1, {});
  EXPECT_TRUE(actual.losses[1].isnan().item<bool>());
  EXPECT_FALSE(actual.losses[0].isnan().item<bool>());
}

TEST(CrossEntropy, composition_for_other_devices_agrees) {
  for (const Precision& p : kPrecisions) {
    at::Tensor logits = random({9, 30}, p.type), other = logits.clone();
    const at::Tensor labels = some_labels(9, 60);
    const at::Tensor max = cross_entropy_row_max(logits);
    EXPECT_TRUE(composite::cross_entropy_row_max(logits).equal(max));
    const at::Tensor sums = cross_entropy_partials(logits, labels, 30, max);
    EXPECT_LE(distance(composite::cross_entropy_partials(logits, labels, 30, max), sums), p.tolerance);
    const at::Tensor sum = sums[0].contiguous();
    cross_entropy_grad_(logits, labels, 30, max, sum, 0.5);
    composite::cross_entropy_grad_(other, labels, 30, max, sum, 0.5);
    EXPECT_LE(distance(other, logits), p.tolerance);
  }
}

TEST(CrossEntropy, an_empty_slice_has_the_neutral_elements) {
  at::Tensor logits = random({4, 0}, at::kFloat);
  EXPECT_EQ(cross_entropy_row_max(logits)[0].item<double>(), -INFINITY);
  const at::Tensor sums = cross_entropy_partials(logits, some_labels(4, 9), 9, at::full({4}, 1.0, at::kFloat));
  EXPECT_EQ(sums.abs().max().item<double>(), 0);
}

TEST(CrossEntropy, names_what_does_not_fit) {
  const at::Tensor logits = random({4, 9});
  EXPECT_THROW(cross_entropy_partials(logits, some_labels(5, 9), 0, cross_entropy_row_max(logits)), Error);
  EXPECT_THROW(cross_entropy_partials(logits, some_labels(4, 9), 0, random({4}, at::kFloat)), Error);
  EXPECT_THROW(cross_entropy_row_max(random({9, 4}).t()), Error);
}

}  // namespace
}  // namespace tetra::test
