#include "train/generate.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>

#include "kernels/error.h"
#include "mesh/philox.h"
#include "mesh/world.h"
#include "models/weights.h"
#include "train/text/tokenizer.h"

namespace tetra {
namespace {

// The next id: the largest logit at temperature 0, else a draw from the top_k by softmax(logits / temperature).
int32_t pick(const at::Tensor& logits, const GenerateOptions& options, uint64_t draw) {
  if (options.temperature <= 0) {
    return logits.argmax().item<int32_t>();
  }
  const int64_t kept = options.top_k > 0 ? std::min(options.top_k, logits.numel()) : logits.numel();
  at::Tensor values;
  at::Tensor ids;
  std::tie(values, ids) = at::topk(logits.to(at::kDouble), kept);
  const auto shares = at::softmax(values / options.temperature, 0).cumsum(0);
  const double u = static_cast<double>(random_bits({options.seed, "generate"}, draw) >> 11) * 0x1.0p-53;
  const int64_t index = (shares < u).sum().item<int64_t>();
  return ids[std::min(index, kept - 1)].item<int32_t>();
}

}  // namespace

std::string generate_text(const std::string& model_folder, const GenerateOptions& options) {
  World world({}, nullptr);
  const ModelConfig config = read_model_config(model_folder);
  const auto tokenizer = load_tokenizer(model_folder, config.vocab_size);
  const auto model = make_causal_lm(config, {}, {world.group(Axis::tp)});
  ModelState state(model->parameters(), shard_groups(world, 0), {});
  load_weights(*model, state, WeightReader::open(model_folder));

  std::vector<int32_t> ids = tokenizer->encode(options.prompt);
  require(!ids.empty(), "--prompt is empty; give at least one character");
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    const auto context = std::min<int64_t>(static_cast<int64_t>(ids.size()), config.max_positions);
    const std::vector<int64_t> window(ids.end() - context, ids.end());
    const auto logits = full_logits(*model, make_token_batch(at::tensor(window).unsqueeze(0)));
    ids.push_back(pick(logits[0][context - 1], options, static_cast<uint64_t>(i)));
  }
  return tokenizer->decode(ids);
}

}  // namespace tetra
