// The program around a kernel: registers tensors, launches, saves outputs and the report. See README.md.
#pragma once

#include <fstream>
#include <ostream>

#include "kernel_operator.h"

namespace twin {

/// Bytes of workspace that the host must ask for in front of the user's: PlatformAscendC::GetLibApiWorkSpaceSize().
inline uint64_t libApiWorkSpaceSize(const char* soc) { return deviceOf(soc).systemWorkspace; }

class Harness {
public:
    /// `soc` as atc spells it, for instance "Ascend910B1" or "Ascend310P3".
    explicit Harness(std::string soc) : soc_(std::move(soc))
    {
        world().launch.device = &deviceOf(soc_.c_str());
        if (world().launch.device->arch != __NPU_ARCH__) {
            harnessError("compiled for __NPU_ARCH__ %d, but %s has %d", __NPU_ARCH__, soc_.c_str(),
                         world().launch.device->arch);
        }
    }

    /// Registers an input tensor with the bytes of a raw little-endian file.
    GM_ADDR input(const std::string& name, const std::string& path)
    {
        std::ifstream file(path, std::ios::binary | std::ios::ate);
        if (!file) {
            harnessError("cannot read %s", path.c_str());
        }
        const auto bytes = static_cast<uint64_t>(file.tellg());
        file.seekg(0);
        GlobalMemory& memory = fresh(name, TensorClass::Input, bytes);
        file.read(reinterpret_cast<char*>(memory.data), static_cast<std::streamsize>(bytes));
        return memory.data;
    }

    /// Registers an input tensor with a copy of `bytes` bytes.
    GM_ADDR input(const std::string& name, const void* data, uint64_t bytes)
    {
        GlobalMemory& memory = fresh(name, TensorClass::Input, bytes);
        std::memcpy(memory.data, data, bytes);
        return memory.data;
    }

    /// Registers an output tensor. Its bytes count as unwritten until a kernel writes them.
    GM_ADDR output(const std::string& name, uint64_t bytes)
    {
        GlobalMemory& memory = fresh(name, TensorClass::Output, bytes);
        std::memset(memory.data, 0xff, bytes);
        return memory.data;
    }

    /// Registers the workspace of `bytes` bytes in all, as the host's tiling function asks for it:
    /// libApiWorkSpaceSize(soc) + user bytes. The result is the kernel's workspace argument.
    GM_ADDR workspace(uint64_t bytes)
    {
        const uint64_t system = world().launch.device->systemWorkspace;
        if (bytes < system) {
            harnessError("workspace of %llu bytes; the system part alone takes %llu",
                         static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(system));
        }
        if (bytes > system) {
            GlobalMemory& user = fresh("workspace", TensorClass::Workspace, bytes - system);
            std::memset(user.data, 0xff, user.bytes);
        }
        return fresh("system workspace", TensorClass::System, system).data;
    }

    /// Registers the tiling data of the next launches: a plain struct, copied.
    template <typename T>
    GM_ADDR tiling(const T& data)
    {
        static_assert(std::is_trivially_copyable_v<T>, "tiling data is a plain struct");
        GlobalMemory& memory =
            fresh("tiling " + std::to_string(tilings_++), TensorClass::Tiling, sizeof(T));
        std::memcpy(memory.data, &data, sizeof(T));
        return memory.data;
    }

    void tilingKey(uint64_t key) { world().launch.tilingKey = key; }

    /// Lets finite values become infinite halves; they are counted instead.
    void allowHalfOverflow() { world().launch.allowHalfOverflow = true; }

    /// Lets infinities reach maximum and minimum reductions: the kernel computes what its model does with them.
    void allowInfiniteExtrema() { world().launch.allowInfiniteExtrema = true; }

    /// Runs the kernel once for every core of `blocks` blocks, one core after another.
    template <typename... Parameters, typename... Arguments>
    void launch(const std::string& kernel, void (*function)(Parameters...), uint32_t blocks, Arguments... arguments)
    {
        static_assert(sizeof...(Parameters) == sizeof...(Arguments), "the kernel takes another number of arguments");
        Launch& launch = world().launch;
        if (blocks == 0) {
            harnessError("launch of %s on 0 blocks", kernel.c_str());
        }
        launch.soc = soc_;
        launch.kernel = kernel;
        launch.blocks = blocks;
        launch.type = KernelType::None;
        names_.push_back(kernel);
        running().kernel = names_.back().c_str();
        world().memories.startLaunch();
        uint32_t cores = 1;
        for (uint32_t block = 0; block < cores; ++block) {
            running().block = static_cast<int>(block);
            world().core = std::make_unique<Core>();
            world().core->block = static_cast<int>(block);
            function(arguments...);
            cores = blocks * static_cast<uint32_t>(vectorCoresPerBlock(kernelType(running().last)));
            finish();
        }
        world().core.reset();
        running().block = -1;
        cores_ = cores;
    }

    /// Writes an output tensor to a raw file; a byte that no kernel wrote is an error.
    void save(const std::string& name, const std::string& path) const
    {
        const GlobalMemory& memory = outputNamed(name);
        for (uint64_t b = 0; b < memory.bytes; ++b) {
            if (((memory.blocks[b / kBlockBytes].initialised >> (b % kBlockBytes)) & 1) == 0) {
                fail(running().last, "output-unwritten", "byte %llu of output %s was never written",
                     static_cast<unsigned long long>(b), name.c_str());
            }
        }
        write(memory, path);
    }

    /// Writes an output tensor whose rows have gaps; bytes that no kernel wrote are 0xff.
    void saveWithGaps(const std::string& name, const std::string& path) const { write(outputNamed(name), path); }

    /// Writes the report, one JSON object, to a file.
    void report(const std::string& path) const
    {
        std::ofstream file(path);
        report(file);
        if (!file) {
            harnessError("cannot write %s", path.c_str());
        }
    }

    void report(std::ostream& out) const;

private:
    GlobalMemory& fresh(const std::string& name, TensorClass kind, uint64_t bytes)
    {
        if (world().memories.named(name) != nullptr) {
            harnessError("tensor %s is registered twice", name.c_str());
        }
        return world().memories.add(name, kind, bytes);
    }

    static const GlobalMemory& outputNamed(const std::string& name)
    {
        const GlobalMemory* memory = world().memories.named(name);
        if (memory == nullptr || memory->kind != TensorClass::Output) {
            harnessError("%s is not an output", name.c_str());
        }
        return *memory;
    }

    static void write(const GlobalMemory& memory, const std::string& path)
    {
        std::ofstream file(path, std::ios::binary);
        file.write(reinterpret_cast<const char*>(memory.data), static_cast<std::streamsize>(memory.bytes));
        if (!file) {
            harnessError("cannot write %s", path.c_str());
        }
    }

    /// What must hold when a core's kernel function returns.
    static void finish()
    {
        Core& core = *world().core;
        const At at = running().last;
        for (const Buffer& buffer : core.buffers) {
            if (buffer.queue >= 0 && buffer.state != BufferState::Free) {
                fail(buffer.changed, "queue-not-freed", "a tensor was not freed before the kernel ended");
            }
        }
        for (int event = 0; event < kHardEvents; ++event) {
            for (int id = 0; id < kEventIds; ++id) {
                const EventSlot& slot = core.events[event][id];
                if (slot.set && !slot.claimed) {
                    fail(slot.at, "set-without-wait", "SetFlag<%s>(%d) was never waited for",
                         pipesOf(static_cast<AscendC::HardEvent>(event)).name, id);
                }
            }
        }
        for (const auto& check : core.exitChecks) {
            check(at);
        }
    }

    std::string soc_;
    std::deque<std::string> names_;
    int tilings_ = 0;
    uint32_t cores_ = 0;
};

}  // namespace twin

#include "twin/json.h"
