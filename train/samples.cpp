#include "train/samples.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "kernels/cross_entropy.h"
#include "kernels/error.h"
#include "train/text/corpus.h"
#include "train/text/shuffle.h"

namespace tetra {
namespace {

// A file of int32 values (steps, global_batch, seq_len), memory-mapped.
class TokenFile {
 public:
  TokenFile(std::string path, const char* key, const TrainConfig& train, int64_t seq_len)
      : path_(std::move(path)), global_batch_(train.global_batch_size), seq_len_(seq_len) {
    const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    require(file >= 0, "data.{}: cannot open {}: {}", key, path_, std::strerror(errno));
    struct stat status {};
    ::fstat(file, &status);
    bytes_ = status.st_size;
    const int64_t needed = train.steps * global_batch_ * seq_len_ * 4;
    if (S_ISREG(status.st_mode) && bytes_ >= needed && bytes_ > 0) {
      map_ = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, file, 0);
    }
    ::close(file);
    require(S_ISREG(status.st_mode), "data.{}: {} is not a file", key, path_);
    require(bytes_ >= needed,
            "data.{}: {} has {} bytes; {} steps of {} sequences of {} int32 tokens need {}. Use at most {} steps", key,
            path_, bytes_, train.steps, global_batch_, seq_len_, needed, bytes_ / (global_batch_ * seq_len_ * 4));
    require(map_ != MAP_FAILED && map_ != nullptr, "data.{}: cannot map {}: {}", key, path_, std::strerror(errno));
  }
  ~TokenFile() {
    if (map_ != nullptr && map_ != MAP_FAILED) {
      ::munmap(map_, bytes_);
    }
  }
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  // [rows, seq_len] int64; every value must lie in [0, vocab_size) or be `also`.
  at::Tensor read(int64_t step, Range rows, int64_t vocab_size, int64_t also) const {
    auto out = at::empty({rows.size(), seq_len_}, at::kLong);
    auto* to = out.mutable_data_ptr<int64_t>();
    const auto* from = static_cast<const char*>(map_) + (step * global_batch_ + rows.begin) * seq_len_ * 4;
    for (int64_t i = 0; i < out.numel(); ++i) {
      int32_t value = 0;
      std::memcpy(&value, from + i * 4, 4);
      require((value >= 0 && value < vocab_size) || value == also,
              "{}: token id {} in step {}, sequence {}, position {} is outside the vocabulary of {}", path_, value,
              step + 1, rows.begin + i / seq_len_, i % seq_len_, vocab_size);
      to[i] = value;
    }
    return out;
  }

 private:
  std::string path_;
  int64_t global_batch_;
  int64_t seq_len_;
  int64_t bytes_ = 0;
  void* map_ = nullptr;
};

class TokenSamples final : public SampleSource {
 public:
  TokenSamples(const Config& config, int64_t vocab_size)
      : tokens_(config.data.tokens, "tokens", config.train, config.data.seq_len), vocab_size_(vocab_size) {
    if (!config.data.labels.empty()) {
      labels_ = std::make_unique<TokenFile>(config.data.labels, "labels", config.train, config.data.seq_len);
    }
  }

  Rows read(int64_t step, Range rows) const override {
    auto ids = tokens_.read(step, rows, vocab_size_, /*also=*/0);
    return {ids, labels_ ? labels_->read(step, rows, vocab_size_, kIgnoreIndex) : ids};
  }
  std::string identity() const override { return "tokens in the file's order"; }

 private:
  TokenFile tokens_;
  std::unique_ptr<TokenFile> labels_;
  int64_t vocab_size_;
};

// Windows of the text in a new order each epoch; the order depends on the seed alone.
class TextSamples final : public SampleSource {
 public:
  TextSamples(const Config& config, int64_t vocab_size)
      : corpus_(Corpus::open(config.data.text, config.data.tokenizer, config.data.seq_len)),
        seed_(config.seed),
        global_batch_(config.train.global_batch_size) {
    require(corpus_.vocab_size() <= vocab_size,
            "data.tokenizer {} has {} ids, the model's vocab_size is {}; use a model with vocab_size {} or more",
            config.data.tokenizer, corpus_.vocab_size(), vocab_size, corpus_.vocab_size());
  }

  Rows read(int64_t step, Range rows) const override {
    auto ids = at::empty({rows.size(), corpus_.seq_len()}, at::kLong);
    const auto samples = static_cast<uint64_t>(corpus_.samples());
    for (int64_t row = 0; row < rows.size(); ++row) {
      const auto position = static_cast<uint64_t>(step * global_batch_ + rows.begin + row);
      const uint64_t sample = shuffled_index(seed_, position / samples, samples, position % samples);
      corpus_.read_sample(static_cast<int64_t>(sample), ids.mutable_data_ptr<int64_t>() + row * corpus_.seq_len());
    }
    return {ids, ids};
  }
  std::string identity() const override { return fmt::format("{} samples of text, shuffled", corpus_.samples()); }

 private:
  Corpus corpus_;
  uint64_t seed_;
  int64_t global_batch_;
};

}  // namespace

std::unique_ptr<SampleSource> open_samples(const Config& config, int64_t vocab_size) {
  if (!config.data.tokens.empty()) {
    return std::make_unique<TokenSamples>(config, vocab_size);
  }
  return std::make_unique<TextSamples>(config, vocab_size);
}

at::Tensor shift_labels(const at::Tensor& labels) {
  auto shifted = at::full(labels.sizes(), kIgnoreIndex, labels.options());
  const int64_t length = labels.size(1);
  shifted.narrow(1, 0, length - 1).copy_(labels.narrow(1, 1, length - 1));
  return shifted;
}

}  // namespace tetra
