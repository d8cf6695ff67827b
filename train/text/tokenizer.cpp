#include "train/text/tokenizer.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "models/safetensors.h"
#include "models/strict_json.h"

namespace tetra {
namespace {

using nlohmann::ordered_json;

constexpr int kByteCount = 256;
constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD

/// The printable character that stands for a byte in tokenizer.json (the alphabet of GPT-2's byte-level BPE): visible
/// Latin-1 characters stand for themselves, the others for U+0100 and on, in order.
std::vector<std::string> byte_alphabet() {
  const auto visible = [](int byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
  };
  std::vector<std::string> alphabet;
  int next = 0x100;
  for (int byte = 0; byte < kByteCount; ++byte) {
    const int code = visible(byte) ? byte : next++;
    if (code < 0x80) {
      alphabet.emplace_back(1, static_cast<char>(code));
    } else {
      alphabet.push_back({static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))});
    }
  }
  return alphabet;
}

/// A byte-level BPE without merges, whose ids are the bytes.
ordered_json byte_tokenizer_json() {
  const ordered_json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  ordered_json vocab = ordered_json::object();
  const auto alphabet = byte_alphabet();
  for (int byte = 0; byte < kByteCount; ++byte) {
    vocab[alphabet[static_cast<size_t>(byte)]] = byte;
  }
  const ordered_json model = {{"type", "BPE"},
                              {"dropout", nullptr},
                              {"unk_token", nullptr},
                              {"continuing_subword_prefix", nullptr},
                              {"end_of_word_suffix", nullptr},
                              {"fuse_unk", false},
                              {"byte_fallback", false},
                              {"ignore_merges", false},
                              {"vocab", vocab},
                              {"merges", ordered_json::array()}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", ordered_json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model", model}};
}

class ByteTokenizer final : public Tokenizer {
 public:
  std::string name() const override { return "byte"; }
  int64_t vocab_size() const override { return kByteCount; }
  bool tokens_are_bytes() const override { return true; }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    ids.reserve(text.size());
    for (const char c : text) {
      ids.push_back(static_cast<unsigned char>(c));
    }
    return ids;
  }

  std::string decode(const std::vector<int32_t>& ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (id >= 0 && id < kByteCount) {
        text += static_cast<char>(id);
      } else {
        text += kReplacement;
      }
    }
    return text;
  }

  void save(const std::string& folder) const override {
    const ordered_json settings = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                   {"clean_up_tokenization_spaces", false}};
    write_file_atomically(folder + "/tokenizer.json", byte_tokenizer_json().dump(2) + "\n");
    write_file_atomically(folder + "/tokenizer_config.json", settings.dump(2) + "\n");
  }
};

/// Whether this tokenizer.json does what `byte` does: all that could change ids must be as it is written here.
bool is_byte_tokenizer(const nlohmann::json& root) {
  const nlohmann::json expected = byte_tokenizer_json();
  for (const char* field : {"normalizer", "pre_tokenizer", "post_processor", "added_tokens"}) {
    if (root.value(field, nlohmann::json()) != expected[field]) {
      return false;
    }
  }
  const auto model = root.value("model", nlohmann::json());
  return model.is_object() && model.value("type", nlohmann::json()) == "BPE" &&
         model.value("vocab", nlohmann::json()) == expected["model"]["vocab"] &&
         model.value("merges", nlohmann::json()) == expected["model"]["merges"];
}

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name) {
  require(name == "byte", "data.tokenizer: '{}' is not known; use byte", name);
  return std::make_unique<ByteTokenizer>();
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& folder, int64_t vocab_size) {
  const std::string path = folder + "/tokenizer.json";
  if (!std::filesystem::exists(path)) {
    require(
        vocab_size == kByteCount,
        "{} has no tokenizer.json, and its model has {} ids; without one, only the byte tokenizer's 256 are understood",
        folder, vocab_size);
    return make_tokenizer("byte");
  }
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  const auto root = parse_strict_json(text.str(), path);
  require(root.is_object() && is_byte_tokenizer(root),
          "{}: this tokenizer is not supported; only the byte tokenizer is (256 ids, each a byte)", path);
  return make_tokenizer("byte");
}

}  // namespace tetra
