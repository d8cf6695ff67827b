#pragma once
// Text files as one stream of tokens, cut into samples of equal length.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "train/text/tokenizer.h"

namespace tetra {

/// The files' tokens one after another, nothing between them; sample i is tokens [i*seq_len, (i+1)*seq_len) of that
/// stream, and a short rest at the end is not used. Where tokens are bytes, only the table of files is held and samples
/// are read from the files when asked for; other tokenizers keep 4 bytes a token. Reading is safe from many threads.
class Corpus {
 public:
  /// `patterns` as expand_files takes them (train/text/files.h). Throws Error on files that are missing or cannot be
  /// read, and where there is not one full sample: "data.text has 120 tokens, fewer than seq_len 256".
  static Corpus open(const std::vector<std::string>& patterns, const std::string& tokenizer, int64_t seq_len);
  Corpus(const std::vector<std::string>& files, std::unique_ptr<Tokenizer> tokenizer, int64_t seq_len);

  int64_t vocab_size() const { return tokenizer_->vocab_size(); }
  int64_t seq_len() const { return seq_len_; }
  int64_t tokens() const { return tokens_; }
  int64_t samples() const { return tokens_ / seq_len_; }

  /// Writes the seq_len ids of sample `index` to `out`. Throws Error where a file has become shorter or unreadable.
  void read_sample(int64_t index, int64_t* out) const;

 private:
  struct File {
    std::string path;
    int64_t begin;  // place of its first byte in the stream
    int64_t size;
  };

  void read_bytes(int64_t begin, int64_t* out) const;

  std::unique_ptr<Tokenizer> tokenizer_;
  int64_t seq_len_;
  int64_t tokens_ = 0;
  std::vector<File> files_;      // tokens are bytes, or
  std::vector<int32_t> stream_;  // all tokens
};

}  // namespace tetra
