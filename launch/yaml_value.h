#pragma once
// A YAML document as plain values with their places, read more strictly than YAML asks: nothing is guessed.

#include <string>
#include <vector>

namespace tetra {

/// Place in a text; both count from 1, columns in characters.
struct Mark {
  int line = 1;
  int column = 1;
};

/// Where a text comes from, for errors: a file, "--set train.steps=5" or an environment variable.
struct Source {
  std::string name;
  bool has_lines = false;  // a file: errors carry line and column

  /// "file.yaml:12:5" or the name alone.
  std::string at(Mark mark) const;
};

struct Entry;

struct Value {
  enum class Kind { null, boolean, number, text, list, map };

  Kind kind = Kind::null;
  std::string text;  // a scalar as written, without quotes; null: "null", or "" where nothing was written
  Mark mark;
  std::vector<Value> items;    // list
  std::vector<Entry> entries;  // map, in the order written
};

struct Entry {
  std::string key;
  Mark mark;
  Value value;
};

/// Reads one document. Throws Error with the place on: a syntax error, a text that is not UTF-8, a tab in the
/// indentation, a quote that is not closed, no document or several, a key given twice or that is not text, a merge key,
/// anchors, aliases, tags, and scalars whose meaning is disputed (see scalar.h).
Value parse_yaml(const std::string& text, const Source& source);

/// The value as an error names it: "5", "the text 'abc'", "a list".
std::string describe(const Value& value);

}  // namespace tetra
