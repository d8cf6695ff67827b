#include "train/text/corpus.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include <gtest/gtest.h>

#include "kernels/error.h"
#include "train/text/files.h"

namespace tetra {
namespace {

namespace fs = std::filesystem;

class CorpusTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "tetra_corpus_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string put(const std::string& name, const std::string& text) const {
    const fs::path path = fs::path(folder_) / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path.string();
  }

  /// Names of the matches, relative to the folder.
  std::vector<std::string> expand(const std::vector<std::string>& patterns) const {
    std::vector<std::string> full;
    for (const auto& pattern : patterns) {
      full.push_back(folder_ + "/" + pattern);
    }
    std::vector<std::string> names;
    for (const auto& file : expand_files(full, "data.text")) {
      names.push_back(fs::path(file).lexically_relative(folder_).string());
    }
    return names;
  }

  std::string folder_;
};

using Names = std::vector<std::string>;

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

#define EXPECT_CONTAINS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

std::string sample(const Corpus& corpus, int64_t index) {
  std::vector<int64_t> ids(static_cast<size_t>(corpus.seq_len()));
  corpus.read_sample(index, ids.data());
  return {ids.begin(), ids.end()};
}

TEST_F(CorpusTest, SamplesTileTheStreamAcrossFiles) {
  const auto a = put("a", "abcde");
  const auto empty = put("b", "");
  const auto c = put("c", "f");
  const auto d = put("d", std::string("gh\0\xff", 4) + "kl");
  const auto corpus = Corpus::open({a, empty, c, d}, "byte", 4);
  EXPECT_EQ(corpus.vocab_size(), 256);
  EXPECT_EQ(corpus.tokens(), 12);
  ASSERT_EQ(corpus.samples(), 3);
  EXPECT_EQ(sample(corpus, 0), "abcd");
  EXPECT_EQ(sample(corpus, 1), "efgh");
  std::vector<int64_t> ids(4);
  corpus.read_sample(2, ids.data());
  EXPECT_EQ(ids, (std::vector<int64_t>{0, 255, 'k', 'l'}));
  EXPECT_EQ(Corpus::open({a}, "byte", 2).samples(), 2);  // the rest of one byte is not used
  EXPECT_CONTAINS(message_of([&] { sample(corpus, 3); }), "sample 3");
  EXPECT_CONTAINS(message_of([&] { sample(corpus, -1); }), "sample -1");
}

TEST_F(CorpusTest, EveryByteOfManySmallFilesIsThere) {
  std::string all;
  for (int i = 0; i < 40; ++i) {
    const std::string text(static_cast<size_t>(i * 5 % 7), static_cast<char>('a' + i % 26));
    put(fmt::format("{:02}.txt", i), text);
    all += text;
  }
  const auto corpus = Corpus::open({folder_ + "/*.txt"}, "byte", 3);
  std::string read;
  for (int64_t i = 0; i < corpus.samples(); ++i) {
    read += sample(corpus, i);
  }
  EXPECT_EQ(read, all.substr(0, all.size() / 3 * 3));
}

// A tokenizer whose tokens are pairs of bytes, to see the other way of keeping tokens.
class PairTokenizer : public Tokenizer {
 public:
  std::string name() const override { return "pair"; }
  int64_t vocab_size() const override { return 65536; }
  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    for (size_t i = 0; i + 1 < text.size(); i += 2) {
      ids.push_back(text[i] * 256 + text[i + 1]);
    }
    return ids;
  }
  std::string decode(const std::vector<int32_t>&) const override { return ""; }
  void save(const std::string&) const override {}
};

TEST_F(CorpusTest, KeepsTheTokensOfOtherTokenizers) {
  const Corpus corpus({put("a", "ABCDE"), put("b", "FG")}, std::make_unique<PairTokenizer>(), 2);
  EXPECT_EQ(corpus.tokens(), 3);
  ASSERT_EQ(corpus.samples(), 1);
  std::vector<int64_t> ids(2);
  corpus.read_sample(0, ids.data());
  EXPECT_EQ(ids, (std::vector<int64_t>{'A' * 256 + 'B', 'C' * 256 + 'D'}));
}

TEST_F(CorpusTest, TooLittleText) {
  const auto file = put("a", std::string(120, 'x'));
  EXPECT_CONTAINS(message_of([&] { Corpus::open({file}, "byte", 256); }),
                  "data.text has 120 tokens, fewer than seq_len 256");
  EXPECT_EQ(Corpus::open({file}, "byte", 120).samples(), 1);
  EXPECT_CONTAINS(message_of([&] { Corpus::open({file}, "byte", 0); }), "seq_len is 0");
  EXPECT_CONTAINS(message_of([&] { Corpus::open({file}, "bpe", 8); }), "'bpe'");
}

TEST_F(CorpusTest, FilesThatChange) {
  const auto file = put("a", std::string(100, 'x'));
  const auto corpus = Corpus::open({file}, "byte", 10);
  fs::resize_file(file, 55);
  EXPECT_EQ(sample(corpus, 4), "xxxxxxxxxx");
  EXPECT_CONTAINS(message_of([&] { sample(corpus, 5); }), "has become shorter");
  fs::remove(file);
  EXPECT_CONTAINS(message_of([&] { sample(corpus, 0); }), "cannot read " + file);
}

TEST_F(CorpusTest, UnreadableFiles) {
  if (::geteuid() == 0) {
    GTEST_SKIP() << "root reads everything";
  }
  const auto file = put("a", "text");
  fs::permissions(file, fs::perms::none);
  EXPECT_CONTAINS(message_of([&] { Corpus::open({file}, "byte", 1); }), "Permission denied");
}

TEST_F(CorpusTest, PipesAreNotFiles) {
  const auto pipe = folder_ + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_CONTAINS(message_of([&] { Corpus::open({pipe}, "byte", 1); }), "not a regular file");
  EXPECT_CONTAINS(message_of([&] { Corpus::open({folder_ + "/*"}, "byte", 1); }), "no file matches");
}

TEST_F(CorpusTest, GlobsAreSortedAndKeepTheOrderGiven) {
  for (const auto* name :
       {"b.txt", "a.txt", "c.md", ".hidden.txt", "in/d.txt", "in/deep/e.txt", ".git/f.txt", "B.txt"}) {
    put(name, "x");
  }
  EXPECT_EQ(expand({"*.txt"}), (Names{"B.txt", "a.txt", "b.txt"}));
  EXPECT_EQ(expand({"c.md", "[ab].txt"}), (Names{"c.md", "a.txt", "b.txt"}));
  EXPECT_EQ(expand({"b.txt", "*.txt"}), (Names{"b.txt", "B.txt", "a.txt"}));  // once
  EXPECT_EQ(expand({"**/*.txt"}), (Names{"B.txt", "a.txt", "b.txt", "in/d.txt", "in/deep/e.txt"}));
  EXPECT_EQ(expand({"in/**"}), (Names{"in/d.txt", "in/deep/e.txt"}));
  EXPECT_EQ(expand({"*/*.txt"}), (Names{"in/d.txt"}));
  EXPECT_EQ(expand({"**/deep/?.txt"}), (Names{"in/deep/e.txt"}));
  EXPECT_EQ(expand({".h*"}), (Names{".hidden.txt"}));
  put("[a].txt", "x");
  EXPECT_EQ(expand({"[a].txt"}), (Names{"[a].txt"}));  // a file of that name comes first
}

TEST_F(CorpusTest, LinksToFoldersAreNotFollowedDeep) {
  put("in/a.txt", "x");
  fs::create_directory_symlink(folder_ + "/in", folder_ + "/in/loop");
  EXPECT_EQ(expand({"**/*.txt"}), (Names{"in/a.txt"}));
}

TEST_F(CorpusTest, RelativePatterns) {
  put("in/a.txt", "x");
  const auto here = fs::current_path();
  fs::current_path(folder_);
  const auto star = expand_files({"*/a.*"}, "data.text");
  const auto deep = expand_files({"**/a.txt"}, "data.text");
  fs::current_path(here);
  EXPECT_EQ(star, Names{"in/a.txt"});
  EXPECT_EQ(deep, Names{"in/a.txt"});
}

TEST_F(CorpusTest, WhatDoesNotMatchIsAnError) {
  put("in/a.txt", "x");
  EXPECT_CONTAINS(message_of([&] { expand({"*.txt"}); }), "data.text: no file matches");
  EXPECT_CONTAINS(message_of([&] { expand({"b.txt"}); }), "b.txt does not exist");
  EXPECT_CONTAINS(message_of([&] { expand({"in"}); }), "is a folder; use");
  EXPECT_CONTAINS(message_of([&] { expand({}); }), "no files are given");
}

}  // namespace
}  // namespace tetra
