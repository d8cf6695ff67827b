#include "parallel/recompute/recompute.h"

#include <memory>
#include <thread>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "kernels/activation.h"
#include "kernels/error.h"
#include "kernels/linear.h"
#include "kernels/norm.h"

namespace tetra {
namespace {

using Tensors = std::vector<at::Tensor>;
using Storages = std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>>;
constexpr int64_t kTokens = 13, kHidden = 24, kFeedForward = 40;

at::Tensor random(at::IntArrayRef sizes, at::ScalarType type = at::kFloat) {
  return at::randn(sizes, at::kDouble).to(type);
}

/// A norm and a SwiGLU block, after a parallel branch.
struct Block {
  explicit Block(at::ScalarType type = at::kFloat)
      : weights{random({kHidden}, type), random({kFeedForward, kHidden}, type), random({kFeedForward, kHidden}, type),
                random({kHidden, kFeedForward}, type)} {
    for (at::Tensor& weight : weights) {
      weight.requires_grad_(true);
    }
  }
  at::Tensor operator()(const at::Tensor& x, Storages* made = nullptr) const {
    const at::Tensor normed = rms_norm(x, weights[0], 1e-5);
    const Tensors both = linear(normed, {weights[1], weights[2]}, {});
    const at::Tensor active = swiglu(both[0], both[1]);
    for (const at::Tensor& y : {normed, both[0], both[1], active}) {
      if (made != nullptr) {
        made->push_back(y.storage().getWeakStorageImpl());
      }
    }
    return x + linear(active, weights[3]) * 0.1;
  }
  Tensors weights;
};

/// Gradients of x and the weights of all blocks, after which they are forgotten.
Tensors take_gradients(const at::Tensor& x, const std::vector<Block>& blocks) {
  Tensors grads;
  const auto take = [&](const at::Tensor& t) {
    grads.push_back(t.grad());
    t.mutable_grad() = at::Tensor();
  };
  take(x);
  for (const Block& block : blocks) {
    for (const at::Tensor& weight : block.weights) {
      take(weight);
    }
  }
  return grads;
}

void expect_same(const Tensors& actual, const Tensors& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i].defined(), expected[i].defined()) << i;
    EXPECT_TRUE(!expected[i].defined() || actual[i].equal(expected[i])) << i;
  }
}

int64_t alive(const Storages& storages) {
  int64_t count = 0;
  for (const auto& storage : storages) {
    count += storage.use_count() > 0 ? 1 : 0;
  }
  return count;
}

/// Calls f after each accumulation.
class Hook : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit Hook(std::function<void(const at::Tensor&)> f) : f_(std::move(f)) {}
  void operator()(const torch::autograd::Variable& tensor) override { f_(tensor.grad()); }

 private:
  std::function<void(const at::Tensor&)> f_;
};

void add_hook(const at::Tensor& weight, std::function<void(const at::Tensor&)> f) {
  torch::autograd::impl::set_post_acc_grad_hooks(weight, std::make_unique<Hook>(std::move(f)));
}

TEST(Recompute, GradientsAreThoseOfAPlainRunToTheBit) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const std::vector<Block> blocks = {Block(type), Block(type), Block(type)};
    const at::Tensor input = random({kTokens, kHidden}, type).requires_grad_(true);
    const at::Tensor grad = random({kTokens, kHidden}, type);
    at::Tensor plain = input * 2, again = input * 2;
    for (const Block& block : blocks) {
      plain = block(plain);
      again = recompute([block](const at::Tensor& x) { return block(x); }, again);
    }
    EXPECT_TRUE(again.equal(plain));
    plain.backward(grad);
    const Tensors expected = take_gradients(input, blocks);
    again.backward(grad);
    expect_same(take_gradients(input, blocks), expected);
  }
}

TEST(Recompute, KeepsTheInputAndNothingElse) {
  const Block block;
  Storages made;
  const auto segment = [&](const at::Tensor& x) { return block(x, &made); };
  at::Tensor input = random({kTokens, kHidden}).requires_grad_(true);
  at::Tensor plain = segment(input);
  EXPECT_EQ(alive(made), 4);  // so the measure can tell
  plain = at::Tensor();
  made.clear();
  at::Tensor middle = input * 2;
  const Storages kept = {middle.storage().getWeakStorageImpl()};
  at::Tensor y = recompute(segment, middle);
  middle = at::Tensor();
  EXPECT_EQ(alive(made), 0);
  EXPECT_EQ(alive(kept), 1);
  y.sum().backward();
  EXPECT_EQ(made.size(), 8U);
  EXPECT_EQ(alive(made), 0);
  EXPECT_EQ(alive(kept), 0);  // though y still holds the graph
}

TEST(Recompute, HooksRunOnceWithTheWholeGradient) {
  const Block block;
  const at::Tensor input = random({kTokens, kHidden}).requires_grad_(true);
  const auto twice = [&](const at::Tensor& x) { return block(block(x)); };
  std::vector<Tensors> seen(block.weights.size());
  std::vector<std::thread::id> threads;
  for (size_t i = 0; i < seen.size(); ++i) {
    add_hook(block.weights[i], [&seen, &threads, i](const at::Tensor& grad) {
      seen[i].push_back(grad.clone());
      threads.push_back(std::this_thread::get_id());
    });
  }
  twice(input).sum().backward();
  const Tensors expected = take_gradients(input, {block});
  recompute(twice, input).sum().backward();
  expect_same(take_gradients(input, {block}), expected);
  for (size_t i = 0; i < seen.size(); ++i) {
    ASSERT_EQ(seen[i].size(), 2U);
    expect_same({seen[i][1]}, {expected[i + 1]});
  }
  for (const std::thread::id id : threads) {
    EXPECT_EQ(id, std::this_thread::get_id());
  }
}

TEST(Recompute, NestsAndFollowsOneAnotherManyTimes) {
  const Block block;
  const at::Tensor input = random({kTokens, kHidden}).requires_grad_(true);
  const auto run = [&](const std::function<at::Tensor(const at::Tensor&)>& one) {
    at::Tensor x = input * 1;
    for (int i = 0; i < 100; ++i) {
      x = one(x) * 0.5;
    }
    x.sum().backward();
    return take_gradients(input, {block});
  };
  const auto plain = [&](const at::Tensor& x) { return block(block(x)); };
  const auto inner = [&](const at::Tensor& x) { return recompute([&](const at::Tensor& t) { return block(t); }, x); };
  const auto outer = [&](const at::Tensor& x) {
    return recompute([&](const at::Tensor& t) { return inner(inner(t)); }, x);
  };
  const Tensors expected = run(plain), actual = run(outer);
  EXPECT_TRUE(actual[0].equal(expected[0]));
  for (size_t i = 1; i < expected.size(); ++i) {  // summed in another order
    EXPECT_LE((actual[i] - expected[i]).abs().max().item<double>(), 1e-5 * expected[i].abs().max().item<double>());
  }
}

TEST(Recompute, ParametersGetGradientsWhereTheInputWantsNone) {
  const Block block;
  const at::Tensor input = random({kTokens, kHidden});
  block(input).sum().backward();
  const Tensors expected = take_gradients(input, {block});
  recompute(block, input).sum().backward();
  expect_same(take_gradients(input, {block}), expected);
}

TEST(Recompute, AFrozenSegmentPassesTheGradientOfItsInput) {
  Block block;
  for (at::Tensor& weight : block.weights) {
    weight.requires_grad_(false);
  }
  const at::Tensor input = random({kTokens, kHidden}).requires_grad_(true);
  block(input).sum().backward();
  const Tensors expected = take_gradients(input, {block});
  recompute(block, input).sum().backward();
  expect_same(take_gradients(input, {block}), expected);
  recompute([](const at::Tensor& x) { return x; }, input).sum().backward();
  EXPECT_EQ(input.grad().min().item<float>(), 1);
  // Nothing inside wants a gradient: backward passes by.
  const at::Tensor y = recompute(block, input.detach());
  (y.sum() + input.sum()).backward();
}

TEST(Recompute, WithoutGradientsIsAPlainCall) {
  const Block block;
  const at::Tensor input = random({kTokens, kHidden}).requires_grad_(true);
  const at::NoGradGuard no_grad;
  int calls = 0;
  const auto segment = [&](const at::Tensor& x) {
    ++calls;
    return block(x);
  };
  const at::Tensor y = recompute(segment, input);
  EXPECT_TRUE(y.equal(block(input)));
  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(calls, 1);
}

TEST(Recompute, ThreadsDoNotMeet) {
  std::vector<std::thread> threads;
  std::vector<int> right(4);
  for (size_t rank = 0; rank < right.size(); ++rank) {
    threads.emplace_back([&right, rank] {
      const std::vector<Block> blocks = {Block(), Block()};
      const at::Tensor input = random({kTokens, kHidden}).requires_grad_(true);
      blocks[1](blocks[0](input)).sum().backward();
      const Tensors expected = take_gradients(input, blocks);
      bool same = true;
      for (int i = 0; i < 20; ++i) {
        recompute(blocks[1], recompute(blocks[0], input)).sum().backward();
        const Tensors actual = take_gradients(input, blocks);
        for (size_t j = 0; j < expected.size(); ++j) {
          same = same && actual[j].equal(expected[j]);
        }
      }
      right[rank] = same ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(right, std::vector<int>({1, 1, 1, 1}));
}

TEST(Recompute, ErrorsPassThroughAndLeaveTheThreadSound) {
  const Block block;
  const at::Tensor input = random({kTokens, kHidden}).requires_grad_(true);
  int calls = 0;
  const auto fails = [&](const at::Tensor& x) {
    require(++calls < 2, "the second call fails");
    return block(x);
  };
  const at::Tensor y = recompute(block, recompute(fails, recompute(block, input)));
  EXPECT_THROW(y.sum().backward(), Error);
  EXPECT_TRUE(at::GradMode::is_enabled());
  EXPECT_THROW(recompute([](const at::Tensor&) -> at::Tensor { fail("at once"); }, input), Error);
  EXPECT_TRUE(at::GradMode::is_enabled());
  take_gradients(input, {block});
  block(input).sum().backward();
  const Tensors expected = take_gradients(input, {block});
  recompute(block, input).sum().backward();
  expect_same(take_gradients(input, {block}), expected);
}

TEST(Recompute, RefusesWhatWouldGiveWrongNumbers) {
  const Block block;
  const at::Tensor input = random({kTokens, kHidden}).requires_grad_(true);
  const at::Tensor once = recompute(block, input).sum();
  once.backward();
  EXPECT_THROW(once.backward(), std::exception);
  EXPECT_THROW(torch::autograd::grad({recompute(block, input).sum()}, {input}, {}, true, /*create_graph=*/true), Error);
  const at::Tensor middle = input * 2;
  const at::Tensor y = recompute(block, middle);
  {
    const at::NoGradGuard no_grad;
    middle.mul_(2);
  }
  EXPECT_THROW(y.sum().backward(), std::exception);
  EXPECT_THROW(recompute(nullptr, input), Error);
  EXPECT_THROW(recompute(block, at::Tensor()), Error);
}

TEST(Recompute, AKeptGraphGoesBackTwice) {
  const Block block;
  const at::Tensor input = random({kTokens, kHidden}).requires_grad_(true);
  const at::Tensor y = recompute(block, input).sum();
  y.backward({}, /*retain_graph=*/true);
  const Tensors one = take_gradients(input, {block});
  y.backward();
  expect_same(take_gradients(input, {block}), one);
}

TEST(Recompute, HostMemoryIsWhereACpuInputIsAlready) {
  const Block block;
  const at::Tensor input = random({kTokens, kHidden}).requires_grad_(true);
  std::vector<const void*> seen;
  const auto segment = [&](const at::Tensor& x) {
    seen.push_back(x.const_data_ptr());
    return block(x);
  };
  recompute(segment, input, {.input_in_host_memory = true}).sum().backward();
  EXPECT_EQ(seen, std::vector<const void*>(2, input.const_data_ptr()));
}

/// The block, with the norm's and the activation's outputs discarded.
struct DiscardingBlock {
  const Block& block;
  Storages* made;
  int* calls;

  at::Tensor operator()(const at::Tensor& x) const {
    const Tensors& w = block.weights;
    const at::Tensor normed = rms_norm(x, w[0], 1e-5);
    DiscardedOutput norm(normed, [x, w, n = calls] {
      ++*n;
      return rms_norm(x, w[0], 1e-5);
    });
    Tensors both = linear(normed, {w[1], w[2]}, {});
    norm.discard();
    for (at::Tensor& y : both) {
      y = norm.restore_for(y);
    }
    const at::Tensor active = swiglu(both[0], both[1]);
    DiscardedOutput activation(active, [both, n = calls] {
      ++*n;
      return swiglu(both[0], both[1]);
    });
    const at::Tensor down = activation.restore_for(linear(active, w[3]));
    activation.discard();
    made->push_back(normed.storage().getWeakStorageImpl());
    made->push_back(active.storage().getWeakStorageImpl());
    return x + down * 0.1;
  }
};

TEST(DiscardedOutput, IsMadeAgainOnceForTheSameGradients) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const Block block(type);
    const at::Tensor input = random({kTokens, kHidden}, type).requires_grad_(true);
    const at::Tensor grad = random({kTokens, kHidden}, type);
    const at::Tensor plain = block(input);
    plain.backward(grad);
    const Tensors expected = take_gradients(input, {block});
    Storages made;
    int calls = 0;
    const at::Tensor y = DiscardingBlock{block, &made, &calls}(input);
    EXPECT_TRUE(y.equal(plain));
    ASSERT_EQ(alive(made), 2);  // saved by the products, but without memory
    for (const auto& storage : made) {
      EXPECT_EQ(storage.lock()->nbytes(), 0U);
      EXPECT_EQ(storage.lock()->data(), nullptr);
    }
    y.backward(grad);
    EXPECT_EQ(calls, 2);
    expect_same(take_gradients(input, {block}), expected);
    EXPECT_EQ(alive(made), 0);  // the memory goes with the consumer's backward, though y holds the graph
  }
}

TEST(DiscardedOutput, WorksInsideARecomputedSegment) {
  const Block block;
  const at::Tensor input = random({kTokens, kHidden}).requires_grad_(true);
  block(input).sum().backward();
  const Tensors expected = take_gradients(input, {block});
  Storages made;
  int calls = 0;
  recompute(DiscardingBlock{block, &made, &calls}, input).sum().backward();
  EXPECT_EQ(calls, 2);
  expect_same(take_gradients(input, {block}), expected);
}

/// y = 2x with two consumers: y * a and y * b, which save it.
struct TwoConsumers {
  at::Tensor x = random({5, 7}).requires_grad_(true), a = random({5, 7}).requires_grad_(true),
             b = random({5, 7}).requires_grad_(true);
  int calls = 0;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage{c10::intrusive_ptr<c10::StorageImpl>()};

  Tensors outputs(const std::function<at::Tensor()>& make) {
    const at::Tensor y = x * 2;
    storage = y.storage().getWeakStorageImpl();
    DiscardedOutput kept(y, [this, make] {
      ++calls;
      return make();
    });
    Tensors z = {kept.restore_for(y * a), kept.restore_for(y * b)};
    kept.discard();
    kept.discard();
    EXPECT_THROW(y.const_data_ptr<float>(), std::exception);
    return z;
  }
};

TEST(DiscardedOutput, AnyConsumerMayComeFirst) {
  for (const size_t first : {0U, 1U}) {
    TwoConsumers c;
    const Tensors z = c.outputs([&] { return c.x * 2; });
    z[first].sum().backward();
    EXPECT_EQ(c.calls, 1);
    z[1 - first].sum().backward();
    EXPECT_EQ(c.calls, 1);
    EXPECT_TRUE(c.a.grad().equal(c.x * 2) && c.b.grad().equal(c.x * 2));
  }
}

TEST(DiscardedOutput, TakesValuesFromAnyLayoutAndFromMemoryThatOthersHold) {
  TwoConsumers c;
  const at::Tensor held = c.x.detach() * 2;
  for (const at::Tensor& again : {held, held.t().contiguous().t()}) {
    (c.outputs([&] { return again; })[0]).sum().backward();
    EXPECT_TRUE(c.a.grad().equal(held));
    EXPECT_TRUE(again.equal(held));  // still whole
    c.a.mutable_grad() = at::Tensor();
  }
}

TEST(DiscardedOutput, AKeptGraphGoesBackTwice) {
  TwoConsumers c;
  const void* made = nullptr;
  const auto make = [&] {
    at::Tensor y = c.x * 2;
    made = y.const_data_ptr();
    return y;
  };
  const at::Tensor z = c.outputs(make)[0].sum();
  z.backward({}, /*retain_graph=*/true);
  EXPECT_EQ(c.storage.lock()->data(), made);  // taken over, not copied
  z.backward();
  EXPECT_EQ(c.calls, 1);
  EXPECT_TRUE(c.a.grad().equal(c.x * 4));
  EXPECT_THROW(z.backward(), std::exception);
}

TEST(DiscardedOutput, ValuesThatDoNotFitAreRefused) {
  TwoConsumers c;
  EXPECT_THROW(c.outputs([&] { return at::Tensor(c.x.t()); })[0].sum().backward(), Error);
  EXPECT_THROW(c.outputs([&] { return c.x.to(at::kDouble); })[0].sum().backward(), Error);
}

TEST(DiscardedOutput, WithoutGradientsIsTheSameTensor) {
  const at::NoGradGuard no_grad;
  const at::Tensor y = random({3, 4}), z = random({3, 4});
  const DiscardedOutput kept(y, [] { return random({3, 4}); });
  EXPECT_TRUE(kept.restore_for(z).is_same(z));
}

TEST(DiscardedOutput, NothingHappensWhereNobodyHasTheTensor) {
  at::Tensor y = random({3, 4});
  DiscardedOutput kept(y, [] { return random({3, 4}); });
  y = at::Tensor();
  kept.discard();
}

TEST(DiscardedOutput, RefusesMemoryThatIsNotItsOwn) {
  const at::Tensor y = random({4, 6}), leaf = random({4, 6}).requires_grad_(true);
  const auto make = [] { return random({4, 6}); };
  EXPECT_THROW(DiscardedOutput(y.slice(0, 0, 2), make), Error);
  EXPECT_THROW(DiscardedOutput(y.view({24}), make), Error);
  EXPECT_THROW(DiscardedOutput((leaf * 2).view({24}), make), Error);
  const at::Tensor other = y.detach();
  EXPECT_THROW(DiscardedOutput(y, make), Error);
  EXPECT_THROW(DiscardedOutput(random({4, 6}), nullptr), Error);
  EXPECT_THROW(DiscardedOutput(at::Tensor(), make), Error);
}

}  // namespace
}  // namespace tetra
