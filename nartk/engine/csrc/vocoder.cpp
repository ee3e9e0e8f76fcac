// HiFi-GAN's generator (Kong et al. 2020, https://arxiv.org/abs/2010.05646): sound of log-mel spectrograms. All its
// layers are convolutions, each a product whose rows are overlapping windows: with a dilation, those of every
// dilation-th row; a transposed one gives all samples that an input begins at once, from the inputs about it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#include "bindings.h"

namespace nartk {

namespace {

constexpr int BLOCK_ROWS = 96;       // windows of a product, which stay near
constexpr float LAST_SLOPE = 0.01f;  // of the leaky ReLU before the last convolution

struct Convolved {
    const Linear* taps = nullptr;
    int before = 0, dilation = 1;  // rows of a window before its own, counted in dilations
};

struct Stage {
    Convolved up;
    int rate = 1;
    std::vector<std::vector<Convolved>> blocks;
};

struct Generator {
    std::vector<py::object> keep;
    Convolved first, last;
    std::vector<Stage> stages;
    int bins = 0;
    bool paired = true;
    float slope = 0.1f;
};

class Vocoder {
  public:
    Vocoder(std::shared_ptr<const Generator> generator, const Kernels* kernels, int threads)
        : generator(generator), kernels(kernels), threads(threads) {}

    // Samples of a spectrogram of n frames.
    void run(const float* mel, int n, std::vector<float>& samples) {
        const Rounding rounding;
        std::lock_guard<std::mutex> lock(mutex);
        threads.adapt();
        int at = 0;  // which buffer holds x
        int step = convolve(generator->first, mel, n, generator->bins, generator->bins, 1.0f, 0, false);
        int channels = generator->first.taps->outputs;
        for (const Stage& stage : generator->stages) {
            const int wide = convolve(stage.up, buffers[at].get(0), n, channels, step, generator->slope, 1 - at, false);
            at = 1 - at;
            n *= stage.rate;
            step = wide / stage.rate;
            channels = stage.blocks[0][0].taps->outputs;
            const size_t size = (size_t)n * step;
            const float* x = buffers[at].get(0);
            float* sum = buffers[2].get(size);
            std::fill(sum, sum + size, 0.0f);
            for (const auto& block : stage.blocks) {
                float* y = buffers[3].get(size);
                std::memcpy(y, x, size * sizeof(float));
                residual(block, n, channels, step);
                add(sum, y, size);
            }
            float* to = buffers[at].get(size);
            const float by = 1.0f / (float)stage.blocks.size();
            for (size_t i = 0; i < size; i++) to[i] = sum[i] * by;
        }
        const int wide = convolve(generator->last, buffers[at].get(0), n, channels, step, LAST_SLOPE, 1 - at, false);
        const float* found = buffers[1 - at].get(0);
        for (int i = 0; i < n; i++) samples.push_back(std::tanh(found[(size_t)i * wide]));
    }

    int bins() const { return generator->bins; }

  private:
    // Buffer 3 holds x [n,step], to which the block's convolutions are added.
    void residual(const std::vector<Convolved>& block, int n, int channels, int step) {
        for (size_t i = 0; i < block.size(); i += generator->paired ? 2 : 1) {
            convolve(block[i], buffers[3].get(0), n, channels, step, generator->slope, 4, false);
            if (generator->paired)
                convolve(block[i + 1], buffers[4].get(0), n, channels, step, generator->slope, 3, true);
            else
                add(buffers[3].get(0), buffers[4].get(0), (size_t)n * step);
        }
    }

    void add(float* y, const float* x, size_t size) {
        for (size_t i = 0; i < size; i += PANEL) kernels->add(y + i, x + i, PANEL);
    }

    // Leaky ReLU, and a convolution of n rows x [n,ldx] of so many channels -> that buffer, or added to it. Returns the
    // floats of a row there.
    int convolve(const Convolved& by, const float* x, int n, int channels, int ldx, float slope, int buffer, bool adds) {
        const Linear& w = *by.taps;
        const int size = w.inputs / channels, dilation = by.dilation, wide = w.width();
        float* y = buffers[buffer].get((size_t)n * wide);
        std::vector<std::pair<int, int>> blocks;  // first row of those that lie `dilation` apart, which of them
        for (int phase = 0; phase < std::min(n, dilation); phase++)
            for (int begin = 0; phase + begin * dilation < n; begin += BLOCK_ROWS) blocks.emplace_back(phase, begin);
        const int parts = threads.parts((int)blocks.size(), (double)n * w.inputs * w.outputs / PART);
        const size_t floats = (size_t)(BLOCK_ROWS + size) * channels;
        const size_t scratch = 2 * floats + 2 * BLOCK_ROWS + PANEL;
        float* scratches = space.get(parts * scratch);
        threads.share((int)blocks.size(), parts, [&](int part, int first, int last) {
            float *rows = scratches + part * scratch, *quantised = rows + floats;
            Grid* grids = (Grid*)(quantised + floats);
            for (int b = first; b < last; b++) {
                const auto [phase, begin] = blocks[b];
                const int m = std::min(BLOCK_ROWS, (n - phase - 1) / dilation + 1 - begin);
                float* to = rows;
                for (int i = begin - by.before; i < begin - by.before + m + size - 1; i++, to += channels) {
                    const long long from = phase + (long long)i * dilation;
                    if (from < 0 || from >= n) {
                        std::fill(to, to + channels, 0.0f);
                        continue;
                    }
                    const float* read = x + (size_t)from * ldx;
                    for (int k = 0; k < channels; k++) to[k] = read[k] >= 0.0f ? read[k] : read[k] * slope;
                }
                // Rows are converted once, not with each window; in int8 all of a block have one grid.
                const void* inputs = w.type == Type::fp32 ? rows : quantised;
                const int held = (m + size - 1) * channels;
                if (w.type == Type::int8) {
                    kernels->to_int8(rows, 1, held, held, (uint8_t*)quantised, held, grids);
                    std::fill(grids + 1, grids + m, grids[0]);
                } else if (w.type == Type::bf16) {
                    kernels->to_bf16(rows, 1, held, held, (uint16_t*)quantised, held);
                }
                kernels->linear(w, inputs, grids, m, channels, y + (phase + (size_t)begin * dilation) * wide,
                                dilation * wide, 0, w.panels(), {Activation::none, adds});
            }
        });
        return wide;
    }

    const std::shared_ptr<const Generator> generator;
    const Kernels* const kernels;
    Threads threads;
    std::mutex mutex;
    Buffer buffers[5], space;
};

// A generator from nested dictionaries; a convolution is a layer, the rows before its own, and its dilation.
std::shared_ptr<const Generator> generator_of(const py::dict& from) {
    auto made = std::make_shared<Generator>();
    const auto convolved = [&](const py::handle& given, int channels) {
        const auto parts = given.cast<py::tuple>();
        Convolved found;
        found.taps = &parts[0].cast<std::shared_ptr<Layered>>()->packed->linear;
        found.before = parts[1].cast<int>();
        found.dilation = parts[2].cast<int>();
        require(channels % 4 == 0 && found.taps->inputs % channels == 0 && found.before >= 0 && found.dilation > 0,
                "a convolution of another size");
        made->keep.push_back(parts[0]);
        return found;
    };
    made->bins = from["bins"].cast<int>();
    made->paired = from["paired"].cast<bool>();
    made->slope = from["slope"].cast<float>();
    require(made->bins > 0, "frames have bins");
    made->first = convolved(from["first"], made->bins);
    int channels = made->first.taps->outputs;
    for (const auto& each : from["stages"].cast<py::list>()) {
        const auto parts = each.cast<py::dict>();
        Stage stage;
        stage.up = convolved(parts["up"], channels);
        stage.rate = parts["rate"].cast<int>();
        channels = parts["channels"].cast<int>();
        require(stage.rate > 0 && stage.up.taps->outputs == stage.rate * rounded(channels, PANEL),
                "an upsampling of another size");
        for (const auto& block : parts["blocks"].cast<py::list>()) {
            stage.blocks.emplace_back();
            for (const auto& one : block.cast<py::list>()) {
                stage.blocks.back().push_back(convolved(one, channels));
                require(stage.blocks.back().back().taps->outputs == channels, "a convolution of another size");
            }
            require(!made->paired || stage.blocks.back().size() % 2 == 0, "a second convolution for each");
        }
        require(!stage.blocks.empty(), "a stage has blocks");
        made->stages.push_back(stage);
    }
    made->last = convolved(from["last"], channels);
    require(made->last.taps->outputs == 1, "a sample is one number");
    return made;
}

}  // namespace

void bind_vocoder(py::module_& m) {
    py::class_<Vocoder>(m, "Vocoder")
        .def(py::init([](const py::dict& from, const std::string& isa, int threads) {
                 require(threads > 0, "a vocoder has threads");
                 return std::make_unique<Vocoder>(generator_of(from), &kernels_of(isa), threads);
             }),
             py::arg("generator"), py::arg("isa"), py::arg("threads"))
        .def(
            "run",
            [](Vocoder& vocoder, const Floats& mel) {
                require(mel.ndim() == 2 && mel.shape(1) == vocoder.bins(), "a spectrogram of other bins");
                std::vector<float> samples;
                {
                    py::gil_scoped_release release;
                    vocoder.run(mel.data(), (int)mel.shape(0), samples);
                }
                return array(samples);
            },
            py::arg("mel"));
}

}  // namespace nartk
