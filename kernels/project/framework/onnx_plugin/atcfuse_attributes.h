// Attributes of an ONNX node as ATC hands them to a plugin: one JSON text,
//     {"attribute": [{"name": "epsilon", "type": 1, "f": "1e-05"}, {"name": "transposed", "ints": [0, 1]}, ...]}
// in which zeros and empty values are left out and floats have six digits. A string attribute <name>_hex beside a float
// <name> carries it exactly ("0x1.4f8b58p-17").
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace atcfuse {

/// A JSON value. Numbers keep their text; true and false are the numbers 1 and 0.
struct Json {
    enum class Kind { kNull, kNumber, kString, kArray, kObject };

    Kind kind = Kind::kNull;
    std::string text;
    std::vector<Json> items;
    std::vector<std::pair<std::string, Json>> members;

    const Json* find(const std::string& name) const
    {
        for (const auto& member : members) {
            if (member.first == name) {
                return &member.second;
            }
        }
        return nullptr;
    }
};

/// Reads one JSON text. Anything but JSON, and nesting deeper than 32, fails.
class JsonReader {
public:
    explicit JsonReader(const char* text) : at_(text) {}

    bool read(Json& value)
    {
        return readValue(value, 0) && (skipSpace(), *at_ == '\0');
    }

private:
    static constexpr int kMaxDepth = 32;

    void skipSpace()
    {
        while (*at_ == ' ' || *at_ == '\t' || *at_ == '\n' || *at_ == '\r') {
            ++at_;
        }
    }

    bool take(char expected)
    {
        skipSpace();
        if (*at_ != expected) {
            return false;
        }
        ++at_;
        return true;
    }

    bool takeWord(const char* word)
    {
        const char* from = at_;
        for (; *word != '\0'; ++word, ++at_) {
            if (*at_ != *word) {
                at_ = from;
                return false;
            }
        }
        return true;
    }

    bool readValue(Json& value, int depth)
    {
        skipSpace();
        if (depth > kMaxDepth) {
            return false;
        }
        switch (*at_) {
            case '{': return readObject(value, depth);
            case '[': return readArray(value, depth);
            case '"': value.kind = Json::Kind::kString; return readString(value.text);
            case 'n': return takeWord("null");
            case 't': value.kind = Json::Kind::kNumber; value.text = "1"; return takeWord("true");
            case 'f': value.kind = Json::Kind::kNumber; value.text = "0"; return takeWord("false");
            default: return readNumber(value);
        }
    }

    bool readNumber(Json& value)
    {
        char* end = nullptr;
        std::strtod(at_, &end);
        if (end == at_) {
            return false;
        }
        value.kind = Json::Kind::kNumber;
        value.text.assign(at_, static_cast<const char*>(end));
        at_ = end;
        return true;
    }

    bool readArray(Json& value, int depth)
    {
        value.kind = Json::Kind::kArray;
        ++at_;
        if (take(']')) {
            return true;
        }
        do {
            value.items.emplace_back();
            if (!readValue(value.items.back(), depth + 1)) {
                return false;
            }
        } while (take(','));
        return take(']');
    }

    bool readObject(Json& value, int depth)
    {
        value.kind = Json::Kind::kObject;
        ++at_;
        if (take('}')) {
            return true;
        }
        do {
            value.members.emplace_back();
            auto& member = value.members.back();
            skipSpace();
            if (*at_ != '"' || !readString(member.first) || !take(':') || !readValue(member.second, depth + 1)) {
                return false;
            }
        } while (take(','));
        return take('}');
    }

    bool readString(std::string& text)
    {
        ++at_;
        while (*at_ != '"') {
            if (static_cast<unsigned char>(*at_) < 0x20) {
                return false;
            }
            if (*at_ == '\\') {
                ++at_;
                if (!readEscape(text)) {
                    return false;
                }
                continue;
            }
            text += *at_++;
        }
        ++at_;
        return true;
    }

    bool readEscape(std::string& text)
    {
        static const char from[] = "\"\\/bfnrt";
        static const char to[] = "\"\\/\b\f\n\r\t";
        for (int i = 0; from[i] != '\0'; ++i) {
            if (*at_ == from[i]) {
                text += to[i];
                ++at_;
                return true;
            }
        }
        return *at_ == 'u' && readCodePoint(text);
    }

    bool readCodePoint(std::string& text)
    {
        uint32_t code = 0;
        ++at_;
        for (int i = 0; i < 4; ++i, ++at_) {
            const char c = *at_;
            const bool digit = c >= '0' && c <= '9';
            const char lower = static_cast<char>(c | 0x20);
            if (!digit && (lower < 'a' || lower > 'f')) {
                return false;
            }
            code = code * 16 + static_cast<uint32_t>(digit ? c - '0' : lower - 'a' + 10);
        }
        if (code < 0x80) {
            text += static_cast<char>(code);
        } else if (code < 0x800) {
            text += static_cast<char>(0xc0 | (code >> 6));
            text += static_cast<char>(0x80 | (code & 0x3f));
        } else {
            text += static_cast<char>(0xe0 | (code >> 12));
            text += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
            text += static_cast<char>(0x80 | (code & 0x3f));
        }
        return true;
    }

    const char* at_;
};

/// Whether a node's float is the one a kernel was generated for, up to the six digits that may be left of it.
inline bool sameNumber(float found, float expected)
{
    const float distance = found > expected ? found - expected : expected - found;
    const float size = expected < 0 ? -expected : expected;
    return found == expected || (found != found && expected != expected) || distance <= 1e-5f * size;
}

inline bool sameNumbers(const std::vector<float>& found, const std::vector<float>& expected)
{
    if (found.size() != expected.size()) {
        return false;
    }
    for (size_t i = 0; i < found.size(); ++i) {
        if (!sameNumber(found[i], expected[i])) {
            return false;
        }
    }
    return true;
}

/// The attributes of one node. Each reader takes the value to use where the node has no such attribute.
class Attributes {
public:
    /// False where the text is not JSON of the form above.
    bool parse(const char* text)
    {
        Json root;
        if (text == nullptr || !JsonReader(text).read(root) || root.kind != Json::Kind::kObject) {
            return false;
        }
        const Json* list = root.find("attribute");
        entries_ = list == nullptr ? std::vector<Json>() : list->items;
        return true;
    }

    int64_t integer(const char* name, int64_t absent) const
    {
        const Json* entry = find(name);
        return entry == nullptr ? absent : toInteger(entry->find("i"));
    }

    /// Exact where <name>_hex is there, else as precise as the JSON's six digits.
    float number(const char* name, float absent) const
    {
        const Json* exact = find(std::string(name) + "_hex");
        if (exact != nullptr) {
            return toFloat(exact->find("s"));
        }
        const Json* entry = find(name);
        return entry == nullptr ? absent : toFloat(entry->find("f"));
    }

    std::string text(const char* name, const char* absent) const
    {
        const Json* entry = find(name);
        if (entry == nullptr) {
            return absent;
        }
        const Json* value = entry->find("s");
        return value == nullptr ? std::string() : value->text;
    }

    std::vector<int64_t> integers(const char* name, std::vector<int64_t> absent) const
    {
        return list<int64_t>(name, "ints", std::move(absent), toInteger);
    }

    std::vector<float> numbers(const char* name, std::vector<float> absent) const
    {
        return list<float>(name, "floats", std::move(absent), toFloat);
    }

    /// Whether a float is the expected one: exactly where <name>_hex is there. An absent attribute is any.
    bool isNumber(const char* name, float expected) const
    {
        const float found = number(name, expected);
        const bool exact = find(std::string(name) + "_hex") != nullptr;
        return exact ? found == expected || (found != found && expected != expected) : sameNumber(found, expected);
    }

    bool areIntegers(const char* name, const std::vector<int64_t>& expected) const
    {
        return integers(name, expected) == expected;
    }

    bool areNumbers(const char* name, const std::vector<float>& expected) const
    {
        return sameNumbers(numbers(name, expected), expected);
    }

private:
    const Json* find(const std::string& name) const
    {
        for (const Json& entry : entries_) {
            const Json* key = entry.find("name");
            if (key != nullptr && key->text == name) {
                return &entry;
            }
        }
        return nullptr;
    }

    template <typename T>
    std::vector<T> list(const char* name, const char* field, std::vector<T> absent, T (*convert)(const Json*)) const
    {
        const Json* entry = find(name);
        if (entry == nullptr) {
            return absent;
        }
        std::vector<T> values;
        const Json* array = entry->find(field);
        if (array != nullptr) {
            for (const Json& item : array->items) {
                values.push_back(convert(&item));
            }
        }
        return values;
    }

    static int64_t toInteger(const Json* value)
    {
        return value == nullptr ? 0 : std::strtoll(value->text.c_str(), nullptr, 10);
    }

    static float toFloat(const Json* value)
    {
        return value == nullptr ? 0.0f : std::strtof(value->text.c_str(), nullptr);
    }

    std::vector<Json> entries_;
};

}  // namespace atcfuse
