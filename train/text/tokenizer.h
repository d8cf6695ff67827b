#pragma once
// Text to token ids and back.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tetra {

/// Immutable, so that threads may share one.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string name() const = 0;  // as in data.tokenizer
  virtual int64_t vocab_size() const = 0;
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  /// Bytes that need not be valid UTF-8: ids can end in the middle of a character. Ids outside the vocabulary, which a
  /// model with a larger one may draw, become U+FFFD.
  virtual std::string decode(const std::vector<int32_t>& ids) const = 0;
  /// True where token i of a text is its byte i, so that files need no encoding.
  virtual bool tokens_are_bytes() const { return false; }
  /// Writes tokenizer.json and tokenizer_config.json, which transformers' AutoTokenizer reads.
  virtual void save(const std::string& folder) const = 0;
};

/// `name` as in data.tokenizer. `byte`: 256 ids, each a byte; nothing is added between or around documents. Throws
/// Error on other names.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name);

/// The tokenizer that belongs to a Hugging Face folder: what its tokenizer.json says, or `byte` where there is none and
/// the model has 256 ids. Throws Error on tokenizers that are not supported.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& folder, int64_t vocab_size);

}  // namespace tetra
