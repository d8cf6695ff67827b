#pragma once
// The one rule of scalar typing, for the file, --set and the environment alike.
//
//   null                                    null
//   true, false                             booleans
//   1, -2, 1e3, 1E-4, .0001, 3.             numbers: decimal, one meaning however they are written
//   anything else, and all in quotes        text
//
// Refused without quotes, since YAML's versions and readers dispute them: yes, no, on, off, True, ..., Null, ~, 010,
// 0x10, 0o10, 1_000, .inf, .nan.

#include <cstdint>
#include <optional>
#include <string>

#include "launch/yaml_value.h"

namespace tetra {

/// The kind of a scalar without quotes. Throws Error (without a place) on a disputed one, saying what to write.
Value::Kind plain_kind(const std::string& text);

/// A number's exact integer value, or nothing where it is not whole or out of range. "1e3" is 1000, "1.50e1" is 15.
std::optional<int64_t> whole_number(const std::string& number);
std::optional<uint64_t> whole_unsigned(const std::string& number);

/// The nearest double, or nothing where it is out of range.
std::optional<double> real_number(const std::string& number);

/// Bytes in a whole number with or without a unit, as "5GB", "500MB", "2GiB" or "1000"; nothing for any other text.
std::optional<int64_t> size_in_bytes(const std::string& text);

/// Whether the number is whole and written without a decimal point: an integer where nothing else says its type.
bool written_as_integer(const std::string& number);

}  // namespace tetra
