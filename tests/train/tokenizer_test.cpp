#include "train/text/tokenizer.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "kernels/error.h"

namespace tetra {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class TokenizerFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "tetra_tokenizer_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  json saved() const { return json::parse(std::ifstream(folder_ + "/tokenizer.json")); }
  void put(const json& root) const { std::ofstream(folder_ + "/tokenizer.json") << root; }

  std::string folder_;
};

TEST(ByteTokenizer, EveryByteIsItsOwnId) {
  const auto tokenizer = make_tokenizer("byte");
  EXPECT_EQ(tokenizer->name(), "byte");
  EXPECT_EQ(tokenizer->vocab_size(), 256);
  std::string all;
  for (int byte = 0; byte < 256; ++byte) {
    all += static_cast<char>(byte);
  }
  const auto ids = tokenizer->encode(all);
  ASSERT_EQ(ids.size(), 256u);
  for (int byte = 0; byte < 256; ++byte) {
    EXPECT_EQ(ids[static_cast<size_t>(byte)], byte);
  }
  EXPECT_EQ(tokenizer->decode(ids), all);
  EXPECT_TRUE(tokenizer->encode("").empty());
  EXPECT_EQ(tokenizer->decode({'a', 256, -1, 'b'}),
            "a\xEF\xBF\xBD\xEF\xBF\xBD"
            "b");
}

TEST(ByteTokenizer, OtherNamesAreRefused) {
  try {
    make_tokenizer("bpe");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'bpe' is not known; use byte"), std::string::npos);
  }
}

TEST_F(TokenizerFolder, SavedInTheByteLevelAlphabet) {
  make_tokenizer("byte")->save(folder_);
  const auto vocab = saved()["model"]["vocab"];
  EXPECT_EQ(vocab.size(), 256u);
  EXPECT_EQ(vocab["A"], 'A');
  EXPECT_EQ(vocab["\xC4\xA0"], ' ');   // U+0120
  EXPECT_EQ(vocab["\xC4\x8A"], '\n');  // U+010A
  EXPECT_EQ(vocab["\xC3\xBF"], 0xFF);  // itself
  EXPECT_EQ(vocab["\xC5\x83"], 0xAD);  // U+0143, the last of the others
  EXPECT_TRUE(fs::exists(folder_ + "/tokenizer_config.json"));
  EXPECT_EQ(load_tokenizer(folder_, 300)->name(), "byte");
}

TEST_F(TokenizerFolder, ForeignTokenizersAreRefused) {
  make_tokenizer("byte")->save(folder_);
  const json good = saved();
  for (const auto* path :
       {"/normalizer", "/pre_tokenizer", "/model/type", "/model/vocab/A", "/added_tokens", "/model"}) {
    json other = good;
    other[json::json_pointer(path)] = {{"type", "Other"}};
    put(other);
    EXPECT_THROW(load_tokenizer(folder_, 256), Error) << path;
  }
  put(good);
  EXPECT_NO_THROW(load_tokenizer(folder_, 256));
  std::ofstream(folder_ + "/tokenizer.json") << "{";
  EXPECT_THROW(load_tokenizer(folder_, 256), Error);
}

TEST_F(TokenizerFolder, WithoutAFileTheVocabularyDecides) {
  EXPECT_EQ(load_tokenizer(folder_, 256)->name(), "byte");
  EXPECT_THROW(load_tokenizer(folder_, 50257), Error);
}

}  // namespace
}  // namespace tetra
