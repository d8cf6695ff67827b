#include "launch/scalar.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "kernels/error.h"

namespace tetra {
namespace {

using Kind = Value::Kind;

TEST(Scalar, EveryKindIsReadOneWay) {
  const std::pair<const char*, Kind> cases[] = {
      {"null", Kind::null},      {"true", Kind::boolean},   {"false", Kind::boolean}, {"0", Kind::number},
      {"-0", Kind::number},      {"12", Kind::number},      {"+5", Kind::number},     {"1e-4", Kind::number},
      {"1E-4", Kind::number},    {".0001", Kind::number},   {"5.", Kind::number},     {"0.5", Kind::number},
      {"1e010", Kind::number},   {"-1.5e+3", Kind::number}, {"1f1b", Kind::text},     {"zb-h1", Kind::text},
      {"out/model", Kind::text}, {"1.2.3", Kind::text},     {"1e", Kind::text},       {"e5", Kind::text},
      {".", Kind::text},         {"-", Kind::text},         {"1 2", Kind::text},      {"2024-01-01", Kind::text},
      {"1:30", Kind::text},      {"_1", Kind::text},        {"y", Kind::text},        {"nullable", Kind::text},
      {"inf", Kind::text},       {"0xyz", Kind::text},      {"run_1", Kind::text},    {"", Kind::text},
  };
  for (const auto& [text, kind] : cases) {
    EXPECT_EQ(plain_kind(text), kind) << text;
  }
}

TEST(Scalar, DisputedOnesAreRefusedWithAWayOut) {
  const std::pair<const char*, const char*> cases[] = {
      {"yes", "booleans are only true or false; write true"},
      {"on", "write true"},
      {"True", "write true"},
      {"TRUE", "write true"},
      {"no", "booleans are only true or false; write false"},
      {"Off", "write false"},
      {"FALSE", "write false"},
      {"~", "null is written null"},
      {"Null", "null is written null"},
      {"NULL", "null is written null"},
      {"010", "leading zero"},
      {"-007", "leading zero"},
      {"00", "leading zero"},
      {"01.5", "leading zero"},
      {"08", "leading zero"},
      {"0x10", "only decimal"},
      {"-0X1F", "only decimal"},
      {"0o17", "only decimal"},
      {"0b11", "only decimal"},
      {"1_000", "underscores"},
      {"1_0.5e1", "underscores"},
      {".inf", "finite"},
      {"-.Inf", "finite"},
      {"+.INF", "finite"},
      {".nan", "finite"},
      {".NaN", "finite"},
  };
  for (const auto& [text, message] : cases) {
    try {
      plain_kind(text);
      ADD_FAILURE() << text << " was taken";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << text << ": " << error.what();
      EXPECT_EQ(std::string(error.what()).find(text), 0u) << error.what();
    }
  }
}

TEST(Scalar, WholeNumbersAreExactHoweverTheyAreWritten) {
  EXPECT_EQ(whole_number("1e3"), 1000);
  EXPECT_EQ(whole_number("1E+3"), 1000);
  EXPECT_EQ(whole_number("1.50e1"), 15);
  EXPECT_EQ(whole_number("1000.0"), 1000);
  EXPECT_EQ(whole_number("20e-1"), 2);
  EXPECT_EQ(whole_number("-0"), 0);
  EXPECT_EQ(whole_number("0e9999999999999999999999"), 0);
  EXPECT_EQ(whole_number("9007199254740993"), 9007199254740993);  // a double would lose the last digit
  EXPECT_EQ(whole_number("9223372036854775807"), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(whole_number("-9223372036854775808"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(whole_unsigned("18446744073709551615"), std::numeric_limits<uint64_t>::max());
  for (const char* text :
       {"1.5", "1e-3", "9223372036854775808", "-9223372036854775809", "1e19", "1e99999999999999999999", "abc", ""}) {
    EXPECT_FALSE(whole_number(text)) << text;
  }
  for (const char* text : {"-1", "18446744073709551616", "0.1"}) {
    EXPECT_FALSE(whole_unsigned(text)) << text;
  }
}

TEST(Scalar, RealNumbersAreTheNearestDouble) {
  for (const char* text : {"1e-4", "1E-4", ".0001", "0.0001", "+1e-4", "0.1e-3", "100e-6"}) {
    EXPECT_EQ(real_number(text), 1e-4) << text;
  }
  EXPECT_EQ(real_number("5."), 5.0);
  EXPECT_EQ(real_number("-.5"), -0.5);
  EXPECT_TRUE(std::signbit(*real_number("-0")));
  for (const char* text : {"1e400", "-1e400", "1e-400", "x", "", "+", "1e", "inf", "nan", "+-1"}) {
    EXPECT_FALSE(real_number(text)) << text;
  }
}

TEST(Scalar, Sizes) {
  EXPECT_EQ(size_in_bytes("5GB"), 5'000'000'000);
  EXPECT_EQ(size_in_bytes("500MB"), 500'000'000);
  EXPECT_EQ(size_in_bytes("2GiB"), int64_t{1} << 31);
  EXPECT_EQ(size_in_bytes("1000"), 1000);
  EXPECT_EQ(size_in_bytes("0B"), 0);
  for (const char* text : {"", "GB", "5 GB", "-5GB", "1.5GB", "5gb", "5GBs", "99999999999999999999", "9999999999GB"}) {
    EXPECT_EQ(size_in_bytes(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace tetra
