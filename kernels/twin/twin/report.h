// Violations: where a kernel broke a rule of the chip, and how the process ends when it did.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace twin {

/// A place in the kernel's own source. API functions take one as a trailing default argument.
struct At {
    const char* file;
    int line;

    static constexpr At here(const char* file = __builtin_FILE(), int line = __builtin_LINE())
    {
        return At{file, line};
    }
};

/// What runs right now; the harness keeps it up to date so that a violation can name it.
struct Running {
    const char* kernel = "(no kernel)";
    int block = -1;
    At last{"(harness)", 0};
};

inline Running& running()
{
    static Running state;
    return state;
}

constexpr int kViolationExitCode = 3;
constexpr int kHarnessExitCode = 4;

/// Prints kernel, block, source line, rule and text, then ends the process with exit code 3.
[[noreturn]] inline void fail(At at, const char* rule, const char* format, ...) __attribute__((format(printf, 3, 4)));

[[noreturn]] inline void fail(At at, const char* rule, const char* format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    std::fprintf(stderr, "twin: %s:%d: kernel %s, block %d: rule %s: %s\n", at.file, at.line, running().kernel,
                 running().block, rule, text);
    std::fflush(stderr);
    std::_Exit(kViolationExitCode);
}

/// A mistake of the program around the kernel (file missing, wrong size), not of the kernel: exit code 4.
[[noreturn]] inline void harnessError(const char* format, ...) __attribute__((format(printf, 1, 2)));

[[noreturn]] inline void harnessError(const char* format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    std::fputs("twin: harness: ", stderr);
    std::vfprintf(stderr, format, arguments);
    va_end(arguments);
    std::fputc('\n', stderr);
    std::fflush(stderr);
    std::_Exit(kHarnessExitCode);
}

}  // namespace twin
