#include "launch/scalar.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <limits>
#include <map>
#include <string_view>

#include "kernels/error.h"

namespace tetra {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

/// A decimal number taken apart: value = sign * digits * 10^exponent.
struct Decimal {
  bool negative = false;
  std::string digits;  // without point; may have leading zeros
  int64_t exponent = 0;
  size_t whole_digits = 0;  // digits before the point
  bool has_point = false;
};

/// Saturates: nothing that matters is beyond 10^1000000.
bool read_exponent(std::string_view text, int64_t& exponent) {
  const bool negative = !text.empty() && text[0] == '-';
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    text.remove_prefix(1);
  }
  if (text.empty() || !std::all_of(text.begin(), text.end(), is_digit)) {
    return false;
  }
  int64_t value = 0;
  for (char c : text) {
    value = std::min<int64_t>(value * 10 + (c - '0'), 1000000);
  }
  exponent = negative ? -value : value;
  return true;
}

std::optional<Decimal> read_decimal(std::string_view text) {
  Decimal decimal;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    decimal.negative = text[0] == '-';
    text.remove_prefix(1);
  }
  const size_t e = text.find_first_of("eE");
  if (e != std::string_view::npos && !read_exponent(text.substr(e + 1), decimal.exponent)) {
    return std::nullopt;
  }
  for (char c : text.substr(0, e)) {
    if (c == '.' && !decimal.has_point) {
      decimal.has_point = true;
    } else if (is_digit(c)) {
      decimal.digits += c;
      decimal.whole_digits += decimal.has_point ? 0 : 1;
      decimal.exponent -= decimal.has_point ? 1 : 0;
    } else {
      return std::nullopt;
    }
  }
  if (decimal.digits.empty()) {
    return std::nullopt;
  }
  return decimal;
}

/// Magnitude of a whole number, or nothing where it has a fraction or needs more than 64 bits.
std::optional<uint64_t> magnitude(Decimal decimal) {
  std::string& digits = decimal.digits;
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  while (!digits.empty() && digits.back() == '0') {
    digits.pop_back();
    ++decimal.exponent;
  }
  if (digits.empty()) {
    return 0;
  }
  if (decimal.exponent < 0 || decimal.exponent > 20) {
    return std::nullopt;
  }
  digits.append(static_cast<size_t>(decimal.exponent), '0');
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return error == std::errc() ? std::optional<uint64_t>(value) : std::nullopt;
}

bool looks_like_other_base(const std::string& text) {
  size_t at = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  if (text.size() < at + 3 || text[at] != '0' || std::string_view("xXoObB").find(text[at + 1]) == std::string::npos) {
    return false;
  }
  return std::all_of(text.begin() + static_cast<std::ptrdiff_t>(at) + 2, text.end(),
                     [](unsigned char c) { return std::isxdigit(c) || c == '_'; });
}

bool is_number_with_underscores(const std::string& text) {
  std::string plain = text;
  plain.erase(std::remove(plain.begin(), plain.end(), '_'), plain.end());
  return plain.size() != text.size() && text[0] != '_' && read_decimal(plain).has_value();
}

void refuse_disputed(const std::string& text) {
  static constexpr std::array kTrue = {"yes", "on", "true"};
  static constexpr std::array kFalse = {"no", "off", "false"};
  const std::string low = lower(text);
  const bool truthy = std::find(kTrue.begin(), kTrue.end(), low) != kTrue.end();
  if (truthy || std::find(kFalse.begin(), kFalse.end(), low) != kFalse.end()) {
    fail("{} is not a boolean here: booleans are only true or false; write {}, or \"{}\" if text is meant", text,
         truthy ? "true" : "false", text);
  }
  require(text != "~" && low != "null", "{} is not used here: null is written null; or write \"{}\" if text is meant",
          text, text);
  std::string unsigned_low = low;
  unsigned_low.erase(0, !low.empty() && (low[0] == '-' || low[0] == '+') ? 1 : 0);
  require(unsigned_low != ".inf" && unsigned_low != ".nan", "{} is not allowed: numbers must be finite", text);
  require(!looks_like_other_base(text), "{}: only decimal numbers are allowed; write \"{}\" if text is meant", text,
          text);
  require(!is_number_with_underscores(text),
          "{}: underscores are not allowed in numbers; write \"{}\" if text is meant", text, text);
}

}  // namespace

Value::Kind plain_kind(const std::string& text) {
  if (text == "null") {
    return Value::Kind::null;
  }
  if (text == "true" || text == "false") {
    return Value::Kind::boolean;
  }
  refuse_disputed(text);
  const auto decimal = read_decimal(text);
  if (!decimal) {
    return Value::Kind::text;
  }
  require(decimal->whole_digits < 2 || decimal->digits[0] != '0',
          "{} has a leading zero, which some read as octal; write the number without it, or \"{}\" if text is meant",
          text, text);
  return Value::Kind::number;
}

std::optional<uint64_t> whole_unsigned(const std::string& number) {
  const auto decimal = read_decimal(number);
  const auto value = decimal ? magnitude(*decimal) : std::nullopt;
  if (!value || (decimal->negative && *value != 0)) {
    return std::nullopt;
  }
  return value;
}

std::optional<int64_t> whole_number(const std::string& number) {
  const auto decimal = read_decimal(number);
  const auto value = decimal ? magnitude(*decimal) : std::nullopt;
  const uint64_t limit = static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) + (decimal && decimal->negative);
  if (!value || *value > limit) {
    return std::nullopt;
  }
  return static_cast<int64_t>(decimal->negative ? ~*value + 1 : *value);
}

std::optional<double> real_number(const std::string& number) {
  if (!read_decimal(number)) {
    return std::nullopt;
  }
  const char* begin = number.data() + (number[0] == '+' ? 1 : 0);
  const char* end = number.data() + number.size();
  double value = 0;
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || stop != end) {
    return std::nullopt;
  }
  return value;
}

bool written_as_integer(const std::string& number) {
  const auto decimal = read_decimal(number);
  return decimal && !decimal->has_point && (whole_number(number) || whole_unsigned(number));
}

std::optional<int64_t> size_in_bytes(const std::string& text) {
  static const std::map<std::string, int64_t> kUnits = {
      {"", 1},
      {"B", 1},
      {"KB", 1'000},
      {"MB", 1'000'000},
      {"GB", 1'000'000'000},
      {"TB", 1'000'000'000'000},
      {"KiB", int64_t{1} << 10},
      {"MiB", int64_t{1} << 20},
      {"GiB", int64_t{1} << 30},
      {"TiB", int64_t{1} << 40},
  };
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto unit = kUnits.find(text.substr(digits));
  const auto number = digits == 0 ? std::nullopt : whole_number(text.substr(0, digits));
  int64_t bytes = 0;
  if (unit == kUnits.end() || !number || __builtin_mul_overflow(*number, unit->second, &bytes)) {
    return std::nullopt;
  }
  return bytes;
}

}  // namespace tetra
