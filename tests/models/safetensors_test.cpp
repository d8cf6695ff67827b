#include "models/safetensors.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "models/safetensors_format.h"

namespace tetra {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string slurp(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

class SafetensorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "tetra_safetensors_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  std::string put(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }

  std::vector<std::string> listing() const {
    std::vector<std::string> names;
    for (const auto& item : fs::directory_iterator(folder_)) {
      names.push_back(item.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  fs::path folder_;
};

std::string file_of(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

std::string floats(std::vector<float> values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string open_error(const std::string& path) {
  return message_of([&] { WeightReader::open(path); });
}

#define EXPECT_CONTAINS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

using Shapes = std::map<std::string, std::pair<at::ScalarType, std::vector<int64_t>>>;

const Shapes kGoldenShapes = {{"b", {at::kBFloat16, {3}}}, {"a", {at::kFloat, {2}}}, {"c", {at::kDouble, {}}},
                              {"e", {at::kFloat, {0, 4}}}, {"d", {at::kBool, {5}}},  {"i", {at::kLong, {2}}}};

std::string golden_file(const std::string& path) {
  SafetensorsWriter writer(path, kGoldenShapes);
  for (const auto& [name, declared] : kGoldenShapes) {
    writer.write(name, at::zeros(declared.second, at::TensorOptions().dtype(declared.first)));
  }
  writer.finish();
  return slurp(path);
}

// The bytes that the reference writer (safetensors 0.8.0) gives for the same tensors and metadata {"format": "pt"}.
TEST_F(SafetensorsTest, WritesTheReferenceBytes) {
  const std::string bytes = golden_file(path("x.safetensors"));
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"i":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},)"
      R"("c":{"dtype":"F64","shape":[],"data_offsets":[16,24]},"a":{"dtype":"F32","shape":[2],"data_offsets":[24,32]},)"
      R"("e":{"dtype":"F32","shape":[0,4],"data_offsets":[32,32]},)"
      R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[32,38]},)"
      R"("d":{"dtype":"BOOL","shape":[5],"data_offsets":[38,43]}})";
  const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(padded.size(), 368u);
  EXPECT_EQ(bytes, file_of(padded, std::string(43, '\0')));
  EXPECT_EQ(listing(), std::vector<std::string>{"x.safetensors"});
}

// The reference writer puts types from wide to narrow in a fixed order, then names.
TEST(SafetensorsLayoutTest, OrdersAsTheReferenceDoes) {
  const std::vector<at::ScalarType> order = {
      at::kUInt64,        at::kLong,        at::kDouble, at::kComplexFloat, at::kFloat, at::kUInt32,
      at::kInt,           at::kBFloat16,    at::kHalf,   at::kUInt16,       at::kShort, at::kFloat8_e8m0fnu,
      at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kChar,   at::kByte,         at::kBool};
  Shapes shapes;
  for (size_t i = 0; i < order.size(); ++i) {
    shapes[fmt::format("b{}", i * 7 % 17)] = {order[i], {1}};
    shapes[fmt::format("a{}", i * 7 % 17)] = {order[i], {1}};
  }
  const auto layout = layout_safetensors(shapes, "x");
  std::map<uint64_t, std::string> by_place;
  for (const auto& [name, entry] : layout.tensors) {
    by_place[entry.begin] = name;
  }
  size_t place = 0;
  for (const auto& [begin, name] : by_place) {
    EXPECT_EQ(layout.tensors.at(name).dtype, order[place / 2]) << name;
    EXPECT_EQ(name[0], place % 2 == 0 ? 'a' : 'b');
    ++place;
  }
}

TEST_F(SafetensorsTest, ReadsBackBitForBit) {
  Shapes shapes;
  std::map<std::string, at::Tensor> tensors;
  for (const auto dtype :
       {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort, at::kChar, at::kByte,
        at::kBool, at::kUInt16, at::kUInt32, at::kUInt64, at::kComplexFloat, at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    const std::string name = c10::toString(dtype);
    shapes[name] = {dtype, {3, 5}};
    auto tensor = at::empty({3, 5}, at::TensorOptions().dtype(dtype));
    auto* bytes = static_cast<unsigned char*>(tensor.mutable_data_ptr());
    for (size_t i = 0; i < tensor.nbytes(); ++i) {
      bytes[i] = dtype == at::kBool ? i % 2 : static_cast<unsigned char>(i * 37 + 11);
    }
    tensors[name] = tensor;
  }
  SafetensorsWriter writer(path("x.safetensors"), shapes);
  for (const auto& [name, tensor] : tensors) {
    writer.write(name, tensor);
  }
  writer.finish();
  const auto reader = WeightReader::open(path("x.safetensors"));
  EXPECT_EQ(reader.tensors().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const auto got = reader.read(name, Slice::whole({3, 5}), tensor.scalar_type());
    EXPECT_EQ(std::memcmp(got.const_data_ptr(), tensor.const_data_ptr(), tensor.nbytes()), 0) << name;
    EXPECT_EQ(reader.tensors().at(name).dtype, tensor.scalar_type());
    EXPECT_EQ(reader.tensors().at(name).file, path("x.safetensors"));
  }
}

TEST_F(SafetensorsTest, ReadsAnySliceOfAnyDim) {
  const auto whole = at::arange(4 * 6 * 5, at::kFloat).reshape({4, 6, 5});
  SafetensorsWriter writer(path("model.safetensors"), {{"w", {at::kFloat, {4, 6, 5}}}});
  writer.write("w", whole);
  writer.finish();
  const auto reader = WeightReader::open(folder_.string());
  for (int64_t dim = 0; dim < 3; ++dim) {
    const Slice slice{{4, 6, 5}, dim, {{0, 1}, {2, 4}, {1, 2}}};  // out of order and joined in order given
    const auto expected = at::cat({whole.narrow(dim, 0, 1), whole.narrow(dim, 2, 2), whole.narrow(dim, 1, 1)}, dim);
    const auto got = reader.read("w", slice, at::kFloat);
    EXPECT_TRUE(got.is_contiguous());
    EXPECT_TRUE(at::equal(got, expected)) << "dim " << dim;
    EXPECT_TRUE(at::equal(reader.read("w", slice, at::kBFloat16), expected.to(at::kBFloat16))) << "dim " << dim;
  }
  EXPECT_EQ(reader.read("w", Slice{{4, 6, 5}, 1, {}}, at::kFloat).numel(), 0);
  EXPECT_EQ(reader.read("w", Slice{{4, 6, 5}, 1, {{3, 3}}}, at::kFloat).sizes(), at::IntArrayRef({4, 0, 5}));
  EXPECT_CONTAINS(message_of([&] { reader.read("w", Slice{{4, 6, 5}, 1, {{0, 7}}}, at::kFloat); }), "[0, 7)");
  EXPECT_CONTAINS(message_of([&] { reader.read("w", Slice{{4, 6, 5}, 3, {{0, 1}}}, at::kFloat); }), "dim 3");
}

TEST_F(SafetensorsTest, ConvertsAsTensorToDoes) {
  const auto values = at::arange(-8, 8, at::kDouble).mul(1.0009765625).div(3.0);
  Shapes shapes;
  for (const auto dtype :
       {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort, at::kChar}) {
    shapes[c10::toString(dtype)] = {dtype, {16}};
  }
  SafetensorsWriter writer(path("x.safetensors"), shapes);
  for (const auto& [name, declared] : shapes) {
    writer.write(name, values.to(declared.first));
  }
  writer.finish();
  const auto reader = WeightReader::open(path("x.safetensors"));
  for (const auto& [name, declared] : shapes) {
    for (const auto target : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
      const auto expected = values.to(declared.first).to(target);
      EXPECT_TRUE(at::equal(reader.read(name, Slice::whole({16}), target), expected)) << name << c10::toString(target);
    }
  }
  EXPECT_TRUE(at::equal(reader.read("Int", Slice::whole({16}), at::kLong), values.to(at::kInt).to(at::kLong)));
  EXPECT_CONTAINS(message_of([&] { reader.read("Float", Slice::whole({16}), at::kLong); }), "does not convert to Long");
}

TEST_F(SafetensorsTest, ScalarsAndEmptyTensors) {
  SafetensorsWriter writer(path("x.safetensors"), {{"s", {at::kDouble, {}}}, {"e", {at::kFloat, {0, 4}}}});
  writer.write("s", at::full({}, 2.5, at::kDouble));
  writer.finish();  // an empty tensor has nothing to write
  const auto reader = WeightReader::open(path("x.safetensors"));
  EXPECT_EQ(reader.read("s", Slice::whole({}), at::kFloat).item<float>(), 2.5f);
  EXPECT_EQ(reader.read("e", Slice::whole({0, 4}), at::kFloat).sizes(), at::IntArrayRef({0, 4}));
}

TEST_F(SafetensorsTest, NamesBothShapesAndTheFile) {
  SafetensorsWriter writer(path("x.safetensors"), {{"w", {at::kFloat, {2, 3}}}});
  writer.write("w", at::zeros({2, 3}));
  writer.finish();
  const auto reader = WeightReader::open(path("x.safetensors"));
  const auto message = message_of([&] { reader.read("w", Slice::whole({3, 2}), at::kFloat); });
  EXPECT_CONTAINS(message, "[2, 3]");
  EXPECT_CONTAINS(message, "[3, 2]");
  EXPECT_CONTAINS(message, path("x.safetensors"));
  EXPECT_CONTAINS(message_of([&] { reader.read("v", Slice::whole({3, 2}), at::kFloat); }), "'v' is missing");
}

TEST_F(SafetensorsTest, ReadsMisalignedData) {
  const std::string header = R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                             R"("w":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})";
  const auto reader = WeightReader::open(put("x.safetensors", file_of(header, floats({0.0f, 1.5f, -2.0f}).substr(3))));
  const auto got = reader.read("w", Slice::whole({2}), at::kDouble);
  EXPECT_EQ(got[0].item<double>(), 1.5);
  EXPECT_EQ(got[1].item<double>(), -2.0);
  EXPECT_EQ(reader.read("w", Slice::whole({2}), at::kFloat)[1].item<float>(), -2.0f);
}

// One damage a line: what the header says, how many bytes of data follow, and what the error must say.
struct Damage {
  const char* header;
  size_t data;
  const char* error;
};
const Damage kDamages[] = {
    {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7, "truncated: the header describes 8 bytes"},
    {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 9, "1 bytes follow the last tensor"},
    {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "hold 4 bytes, but F32 [2] needs 8"},
    {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8, "run backwards"},
    {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}})", 8, "data_offsets holds -8"},
    {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8.0]}})", 8, "data_offsets holds 8.0"},
    {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,"8"]}})", 8, "data_offsets holds"},
    {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,99999999999999999999]}})", 8, "data_offsets holds"},
    {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]}})", 8, "too large"},
    {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", 8, "not a pair"},
    {R"({"w":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8, "shape holds -2"},
    {R"({"w":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})", 8, "shape is not a list"},
    {R"({"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0, "larger than any file"},
    {R"({"w":{"dtype":"F32","shape":[2305843009213693952],"data_offsets":[0,0]}})", 0, "larger than any file"},
    {R"({"w":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})", 1, "dtype 'F4' is not known"},
    {R"({"w":{"dtype":7,"shape":[2],"data_offsets":[0,8]}})", 8, "dtype is not a string"},
    {R"({"w":{"shape":[2],"data_offsets":[0,8]}})", 8, "'dtype' is missing"},
    {R"({"w":{"dtype":"F32","data_offsets":[0,8]}})", 8, "'shape' is missing"},
    {R"({"w":{"dtype":"F32","shape":[2]}})", 8, "'data_offsets' is missing"},
    {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"strides":[1]}})", 8, "unknown field 'strides'"},
    {R"({"w":[1]})", 0, "not an object"},
    {R"({"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"v":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 3,
     "overlap"},
    {R"({"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2,
     "overlap"},
    {R"({"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"v":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})", 5,
     "hole in the data before it, from 2 to 3"},
    {R"({"w":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})", 4, "hole in the data before it, from 0 to 2"},
    {R"({"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2,
     "'w' is given twice"},
    {R"({"w":{"dtype":"U8","dtype":"I8","shape":[2],"data_offsets":[0,2]}})", 2, "'dtype' is given twice"},
    {R"({"__metadata__":{"a":1}})", 0, "may hold strings only"},
    {R"({"__metadata__":[]})", 0, "__metadata__ is not an object"},
    {R"({"w":{"dtype":"U8","shape":[[2]],"data_offsets":[0,2]}})", 2, "nested deeper"},
    {R"({"w":)", 0, "not valid JSON"},
    {R"({} {})", 0, "not valid JSON"},
    {"{\"w\xff\":{}}", 0, "not valid JSON"},
    {R"([1,2])", 0, "does not start with '{'"},
    {R"( {})", 0, "does not start with '{'"},
    {"", 0, "does not start with '{'"},
};

TEST_F(SafetensorsTest, EveryRuleOfTheFormatIsChecked) {
  for (const auto& damage : kDamages) {
    const auto file = put("x.safetensors", file_of(damage.header, std::string(damage.data, '\0')));
    const auto message = open_error(file);
    EXPECT_CONTAINS(message, damage.error);
    EXPECT_CONTAINS(message, file);
  }
}

TEST_F(SafetensorsTest, TruncatedOrLyingHeaderLength) {
  EXPECT_CONTAINS(open_error(put("x", "")), "truncated");
  EXPECT_CONTAINS(open_error(put("x", "\x02\0\0\0")), "truncated");
  EXPECT_CONTAINS(open_error(put("x", file_of("{}", "").substr(0, 9))), "the header has 2 bytes");
  EXPECT_CONTAINS(open_error(put("x", std::string(8, '\xff') + "{}")), "at most 100000000");
  const uint64_t large = 100'000'001;
  EXPECT_CONTAINS(open_error(put("x", std::string(reinterpret_cast<const char*>(&large), 8) + "{}")),
                  "at most 100000000");
  EXPECT_CONTAINS(open_error(path("nothing.safetensors")), "cannot open");
  ASSERT_TRUE(fs::create_directory(path("empty")));
  EXPECT_CONTAINS(open_error(path("empty")), "holds neither");
}

TEST_F(SafetensorsTest, AcceptsWhatForeignWritersDo) {
  WeightReader::open(put("x", file_of("{}", "")));
  WeightReader::open(put("x", file_of("{}   \n", "")));
  WeightReader::open(put("x", file_of(R"({"__metadata__":{}})", "")));
  // Empty tensors may sit anywhere on the seam between others.
  const auto reader = WeightReader::open(
      put("x", file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"e":{"dtype":"F64","shape":[0],)"
                       R"("data_offsets":[2,2]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
                       "abc")));
  EXPECT_EQ(reader.read("b", Slice::whole({1}), at::kByte).item<uint8_t>(), 'c');
}

/// `good` with a byte changed, three ways at each place.
void for_each_flip(const std::string& good, size_t step, const std::function<void(const std::string&)>& action) {
  std::mt19937 random(7);
  for (size_t at = 0; at < good.size(); at += step) {
    for (const char flip : {'\x01', '\x10', static_cast<char>(random())}) {
      std::string bytes = good;
      bytes[at] = static_cast<char>(bytes[at] ^ flip);
      action(bytes);
    }
  }
}

// Bytes flipped and ends cut at every place: an Error, or a header whose tensors lie in the file; never a crash. The
// bytes are a heap block of their exact size, so that an address sanitizer sees every step beyond them.
TEST_F(SafetensorsTest, HeaderSurvivesAnyDamage) {
  const std::string good = golden_file(path("x.safetensors"));
  int accepted = 0;
  const auto parse = [&](const std::string& bytes) {
    const std::vector<char> block(bytes.begin(), bytes.end());
    try {
      const auto header = parse_safetensors_header(block.data(), block.size(), "file");
      ++accepted;
      for (const auto& [name, entry] : header.tensors) {
        EXPECT_LE(entry.begin, entry.end);
        EXPECT_LE(header.data_begin + entry.end, block.size());
      }
    } catch (const Error&) {
    }
  };
  for_each_flip(good, 1, parse);
  EXPECT_GT(accepted, 3 * 43);  // at least those with a flip in the data
  accepted = 0;
  for (size_t size = 0; size < good.size(); ++size) {
    parse(good.substr(0, size));
    parse(good.substr(size + 1));
  }
  EXPECT_EQ(accepted, 0);
}

TEST_F(SafetensorsTest, ReaderSurvivesAnyDamage) {
  for_each_flip(golden_file(path("x.safetensors")), 29, [&](const std::string& bytes) {
    put("y.safetensors", bytes);
    try {
      const auto reader = WeightReader::open(path("y.safetensors"));
      for (const auto& [name, info] : reader.tensors()) {
        const auto tensor = reader.read(name, Slice::whole(info.shape), info.dtype);
        EXPECT_EQ(tensor.sizes(), at::IntArrayRef(info.shape));
      }
    } catch (const Error&) {
    }
  });
}

class ShardsTest : public SafetensorsTest {
 protected:
  void SetUp() override {
    SafetensorsTest::SetUp();
    write_one("model-00001-of-00002.safetensors", "a", 1);
    write_one("model-00002-of-00002.safetensors", "b", 2);
  }
  void write_one(const std::string& file, const std::string& name, double value) {
    SafetensorsWriter writer(path(file), {{name, {at::kFloat, {2}}}});
    writer.write(name, at::full({2}, value, at::kFloat));
    writer.finish();
  }
  std::string error_with(const json& map) {
    put("model.safetensors.index.json", json{{"weight_map", map}}.dump());
    return open_error(folder_.string());
  }
};

TEST_F(ShardsTest, ReadsThroughTheIndex) {
  EXPECT_EQ(error_with({{"a", "model-00001-of-00002.safetensors"}, {"b", "model-00002-of-00002.safetensors"}}),
            "no error");
  const auto reader = WeightReader::open(folder_.string());
  EXPECT_EQ(reader.read("a", Slice::whole({2}), at::kFloat)[1].item<float>(), 1.0f);
  EXPECT_EQ(reader.read("b", Slice::whole({2}), at::kFloat)[1].item<float>(), 2.0f);
  EXPECT_TRUE(reader.contains("a"));
  EXPECT_FALSE(reader.contains("c"));
}

TEST_F(ShardsTest, IndexAndShardsMustAgree) {
  EXPECT_CONTAINS(error_with({{"a", "model-00001-of-00002.safetensors"}, {"b", "model-00003-of-00002.safetensors"}}),
                  "'model-00003-of-00002.safetensors' is missing");
  EXPECT_CONTAINS(error_with({{"a", "model-00001-of-00002.safetensors"}, {"b", "model-00001-of-00002.safetensors"}}),
                  "'b' is not in");
  write_one("model-00001-of-00002.safetensors", "c", 1);
  EXPECT_CONTAINS(error_with({{"b", "model-00002-of-00002.safetensors"}, {"a", "model-00001-of-00002.safetensors"}}),
                  "'a' is not in");
  SafetensorsWriter writer(path("model-00001-of-00002.safetensors"),
                           {{"a", {at::kFloat, {}}}, {"z", {at::kFloat, {}}}});
  writer.write("a", at::zeros({}));
  writer.write("z", at::zeros({}));
  writer.finish();
  EXPECT_CONTAINS(error_with({{"a", "model-00001-of-00002.safetensors"}, {"b", "model-00002-of-00002.safetensors"}}),
                  "'z' of");
}

TEST_F(ShardsTest, FileNamesStayInTheFolder) {
  ASSERT_TRUE(fs::create_directory(path("inner")));
  write_one("inner/good.safetensors", "a", 1);
  EXPECT_EQ(error_with({{"a", "inner/good.safetensors"}}), "no error");
  const std::string absolute = path("inner/good.safetensors");
  for (const std::string& bad :
       std::vector<std::string>{"../x.safetensors", "inner/../../x.safetensors", "", absolute}) {
    EXPECT_CONTAINS(error_with({{"a", bad}}), "leads out of the folder");
  }
}

TEST_F(ShardsTest, BrokenIndex) {
  const auto broken = [&](const std::string& text) {
    put("model.safetensors.index.json", text);
    return open_error(folder_.string());
  };
  EXPECT_CONTAINS(broken("{}"), "'weight_map' is missing");
  EXPECT_CONTAINS(broken("[]"), "'weight_map' is missing");
  EXPECT_CONTAINS(broken(R"({"weight_map":[]})"), "not an object");
  EXPECT_CONTAINS(broken(R"({"weight_map":{"a":1}})"), "not given a file name");
  EXPECT_CONTAINS(broken(R"({"weight_map":{"a":"x","a":"y"}})"), "'a' is given twice");
  EXPECT_CONTAINS(broken(""), "not valid JSON");
}

TEST_F(ShardsTest, TheSingleFileWins) {
  write_one("model.safetensors", "single", 3);
  put("model.safetensors.index.json", "not even JSON");
  EXPECT_TRUE(WeightReader::open(folder_.string()).contains("single"));
}

TEST_F(SafetensorsTest, WriterTakesRowsInAnyOrder) {
  const auto whole = at::arange(20, at::kFloat).reshape({5, 4});
  {
    SafetensorsWriter writer(path("x.safetensors"), {{"w", {at::kFloat, {5, 4}}}});
    writer.write_rows("w", whole.narrow(0, 3, 2), 3);
    writer.write_rows("w", whole.narrow(0, 0, 2), 0);
    EXPECT_CONTAINS(message_of([&] { writer.finish(); }), "'w': 64 of 80 bytes");
    EXPECT_CONTAINS(message_of([&] { writer.write_rows("w", whole.narrow(0, 0, 2), 1); }), "written already");
    EXPECT_CONTAINS(message_of([&] { writer.write_rows("w", whole.narrow(0, 0, 2), 4); }), "do not fit");
    EXPECT_CONTAINS(message_of([&] { writer.write_rows("w", at::zeros({1, 3}), 2); }), "do not fit");
    writer.write_rows("w", whole.narrow(0, 2, 1), 2);
    writer.finish();
  }
  const auto got = WeightReader::open(path("x.safetensors")).read("w", Slice::whole({5, 4}), at::kFloat);
  EXPECT_TRUE(at::equal(got, whole));
}

TEST_F(SafetensorsTest, WriterRefusesWhatWasNotDeclared) {
  {
    SafetensorsWriter writer(path("x.safetensors"), {{"w", {at::kFloat, {2, 3}}}});
    EXPECT_CONTAINS(message_of([&] { writer.write("v", at::zeros({2, 3})); }), "'v' was not declared");
    EXPECT_CONTAINS(message_of([&] { writer.write("w", at::zeros({3, 2})); }), "has shape [3, 2]");
    EXPECT_CONTAINS(message_of([&] { writer.write("w", at::zeros({2, 3}, at::kDouble)); }), "is Double");
    EXPECT_CONTAINS(message_of([&] { writer.write("w", at::zeros({3, 2}).t()); }), "not a contiguous");
    EXPECT_CONTAINS(message_of([&] { writer.finish(); }), "0 of 24 bytes");
    writer.write("w", at::zeros({2, 3}));
    EXPECT_CONTAINS(message_of([&] { writer.write("w", at::zeros({2, 3})); }), "written already");
  }
  EXPECT_TRUE(listing().empty());  // never finished: nothing is left behind
  EXPECT_CONTAINS(message_of([&] {
                    SafetensorsWriter(path("x"), {{"__metadata__", {at::kFloat, {}}}});
                  }),
                  "__metadata__");
  EXPECT_CONTAINS(message_of([&] { SafetensorsWriter(path("x"), {{"\xff", {at::kFloat, {}}}}); }), "UTF-8");
  EXPECT_CONTAINS(message_of([&] { SafetensorsWriter(path("no/x"), {{"w", {at::kFloat, {}}}}); }), "No such file");
}

TEST_F(SafetensorsTest, OddNamesSurvive) {
  const std::string name = "a \"quoted\"\\\n\xc3\xa9";
  SafetensorsWriter writer(path("x.safetensors"), {{name, {at::kFloat, {}}}});
  writer.write(name, at::zeros({}));
  writer.finish();
  EXPECT_TRUE(WeightReader::open(path("x.safetensors")).contains(name));
}

// A disk that is full, played by a limit on file sizes: an error that names the file and the reason, nothing left
// behind, and an older file untouched.
TEST_F(SafetensorsTest, FailedWritesLeaveTheOldFile) {
  put("x.safetensors", "old");
  rlimit old = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {4096, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto large = message_of([&] { SafetensorsWriter(path("x.safetensors"), {{"w", {at::kFloat, {4096}}}}); });
  const auto text = message_of([&] { write_file_atomically(path("x.safetensors"), std::string(10000, 'x')); });
  setrlimit(RLIMIT_FSIZE, &old);
  signal(SIGXFSZ, handler);
  for (const auto& message : {large, text}) {
    EXPECT_CONTAINS(message, "cannot write");
    EXPECT_CONTAINS(message, path("x.safetensors"));
    EXPECT_CONTAINS(message, "File too large");
  }
  EXPECT_EQ(slurp(path("x.safetensors")), "old");
  EXPECT_EQ(listing(), std::vector<std::string>{"x.safetensors"});
}

TEST_F(SafetensorsTest, WritesFilesAtomically) {
  write_file_atomically(path("config.json"), "{}");
  write_file_atomically(path("config.json"), "{\"a\":1}");
  EXPECT_EQ(slurp(path("config.json")), "{\"a\":1}");
  EXPECT_EQ(listing(), std::vector<std::string>{"config.json"});
  EXPECT_CONTAINS(message_of([&] { write_file_atomically(path("no/config.json"), ""); }), "No such file");
}

using Declared = std::vector<std::pair<std::string, std::pair<at::ScalarType, std::vector<int64_t>>>>;

TEST(ShardPlanTest, OneFileNeedsNoIndex) {
  const auto plan = plan_shards({{"b", {at::kFloat, {4}}}, {"a", {at::kBFloat16, {4}}}}, 24);
  ASSERT_EQ(plan.files.size(), 1u);
  EXPECT_EQ(plan.files[0].first, "model.safetensors");
  EXPECT_EQ(plan.files[0].second, (std::vector<std::string>{"b", "a"}));
  EXPECT_TRUE(plan.index_json.empty());
  EXPECT_EQ(plan_shards({}, 8).files.size(), 1u);
}

TEST(ShardPlanTest, FillsFilesInOrder) {
  const Declared tensors = {{"a", {at::kFloat, {2}}},
                            {"big", {at::kFloat, {5}}},
                            {"b", {at::kFloat, {2}}},
                            {"c", {at::kFloat, {1}}},
                            {"d", {at::kLong, {2}}}};
  const auto plan = plan_shards(tensors, 16);
  const std::vector<std::pair<std::string, std::vector<std::string>>> expected = {
      {"model-00001-of-00004.safetensors", {"big"}},
      {"model-00002-of-00004.safetensors", {"a", "b"}},
      {"model-00003-of-00004.safetensors", {"c"}},
      {"model-00004-of-00004.safetensors", {"d"}}};
  EXPECT_EQ(plan.files, expected);
  const auto index = json::parse(plan.index_json);
  EXPECT_EQ(index["metadata"]["total_size"], 56);
  EXPECT_EQ(index["metadata"]["total_parameters"], 12);
  EXPECT_EQ(index["weight_map"]["b"], "model-00002-of-00004.safetensors");
  EXPECT_EQ(index["weight_map"].size(), 5u);
  EXPECT_CONTAINS(message_of([&] { plan_shards(tensors, 0); }), "max_shard_bytes is 0");
  EXPECT_CONTAINS(message_of([&] { plan_shards({{"a", {at::kFloat, {}}}, {"a", {at::kFloat, {}}}}, 8); }), "twice");
}

TEST_F(SafetensorsTest, RemovesStaleWeightFilesOnly) {
  for (const auto* name : {"model.safetensors", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                           "model-00003-of-00003.safetensors", "model.safetensors.index.json", "config.json",
                           "adapter_model.safetensors", "model-1-of-2.safetensors"}) {
    put(name, "x");
  }
  remove_stale_weight_files(folder_.string(), plan_shards({{"a", {at::kFloat, {2}}}, {"b", {at::kFloat, {2}}}}, 8));
  EXPECT_EQ(listing(), (std::vector<std::string>{"adapter_model.safetensors", "config.json",
                                                 "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                                                 "model-1-of-2.safetensors", "model.safetensors.index.json"}));
  remove_stale_weight_files(folder_.string(), plan_shards({{"a", {at::kFloat, {2}}}}, 8));
  EXPECT_EQ(listing(),
            (std::vector<std::string>{"adapter_model.safetensors", "config.json", "model-1-of-2.safetensors"}));
}

}  // namespace
}  // namespace tetra
