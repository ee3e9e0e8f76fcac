// The engine as Python sees it. Arguments are checked here and below; the lock of Python is given up while
// the engine computes.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>

#include "engine.h"
#include "weights.h"

namespace py = pybind11;
using namespace nartk;

namespace {

using Ints = py::array_t<int32_t, py::array::c_style | py::array::forcecast>;
using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;
using Doubles = py::array_t<double, py::array::c_style | py::array::forcecast>;

// NumPy's array of any sequence; none of what has no array. `ensure` would swallow an interrupt with the rest.
template <class Array>
std::optional<Array> array_of(const py::object& from) {
    try {
        return Array(from);
    } catch (const py::error_already_set& error) {
        if (!error.matches(PyExc_ValueError) && !error.matches(PyExc_TypeError)) throw;
        return std::nullopt;
    }
}

// Whole numbers that 32 bits hold, such as handles, from any sequence.
Ints ints(const py::object& from) {
    const auto found = array_of<py::array>(from);
    if (!found || found->ndim() != 1) throw PassFault("handles, lengths and words are lists of whole numbers");
    const py::array& any = *found;
    if (py::isinstance<Ints>(any)) return Ints(any);
    if (any.size() == 0) return Ints(0);
    if (!std::strchr("iub", any.dtype().kind()))
        throw PassFault("handles, lengths and words are whole numbers of at most 32 bits");
    const py::array_t<int64_t, py::array::c_style | py::array::forcecast> wide(any);
    Ints made(wide.size());
    for (py::ssize_t i = 0; i < wide.size(); i++) {
        const int64_t value = wide.data()[i];
        if (value != (int32_t)value) throw PassFault(number(value) + " is no number of 32 bits");
        made.mutable_data()[i] = (int32_t)value;
    }
    return made;
}

// An array that must be [count] of its type already; count -1: of any length.
template <class Array>
Array column(const py::object& from, const char* name, py::ssize_t count) {
    using Any = py::array_t<typename Array::value_type, 0>;  // laid out anyhow
    if (!py::isinstance<Any>(from) || from.cast<py::array>().ndim() != 1)
        throw PassFault("`" + std::string(name) + "` is no array of one dimension and of the type of the pass");
    const Array made(from);
    if (count >= 0 && made.size() != count)
        throw PassFault("`" + std::string(name) + "` has " + number(made.size()) + " numbers, not " + number(count));
    return made;
}

template <class Array>
std::optional<Array> maybe(const py::object& from, const char* name, py::ssize_t count) {
    if (from.is_none()) return std::nullopt;
    return column<Array>(from, name, count);
}

constexpr auto PATIENCE = std::chrono::milliseconds(50);  // between looks for an interrupt

template <class Value>
using Names = std::initializer_list<std::pair<const char*, Value>>;

template <class Value>
Value named(const Names<Value>& names, const std::string& name) {
    for (const auto& [each, value] : names)
        if (name == each) return value;
    throw py::value_error(name + " is nothing that the engine knows");
}

const Names<Type> TYPES = {{"fp32", Type::fp32}, {"bf16", Type::bf16}, {"int8", Type::int8}};
const Names<Activation> ACTIVATIONS = {{"relu", Activation::relu},
                                       {"gelu", Activation::gelu},
                                       {"gelu_tanh", Activation::gelu_tanh},
                                       {"silu", Activation::silu},
                                       {"sigmoid", Activation::sigmoid}};
const Names<Copied> COPIES = {{"none", Copied::none},     {"uniform", Copied::uniform}, {"soft", Copied::soft},
                              {"source", Copied::source}, {"memory", Copied::memory},   {"fires", Copied::fires}};

const Kernels& kernels_of(const std::string& isa) {
    const Kernels* found = kernels_for(isa.c_str());
    if (!found) throw py::value_error("this build and processor have no instruction set " + isa);
    return *found;
}

template <class T>
py::array_t<T> array(const std::vector<T>& values) {
    return py::array_t<T>((py::ssize_t)values.size(), values.data());
}

template <class T>
py::array_t<T> matrix(const std::vector<T>& values, py::ssize_t columns) {
    return py::array_t<T>({columns ? (py::ssize_t)values.size() / columns : 0, columns}, values.data());
}

void require(bool holds, const char* what) {
    if (!holds) throw py::value_error(what);
}

// A packed layer, with the memory that it points into.
struct Layered {
    std::shared_ptr<Packed> packed;
    std::shared_ptr<py::buffer_info> keep;
};

void check_shape(py::ssize_t outputs, py::ssize_t inputs, Type type) {
    require(outputs > 0 && inputs > 0 && outputs < INT32_MAX - PANEL && inputs < INT32_MAX - PANEL,
            "a layer has inputs and outputs");
    require(type != Type::int8 || inputs <= MOST_INT8, "too many inputs for int8");
}

std::shared_ptr<Layered> pack(Floats weights, std::optional<Floats> bias, const std::string& type) {
    require(weights.ndim() == 2, "weights are a matrix");
    require(!bias || bias->size() == weights.shape(0), "a bias for each output");
    check_shape(weights.shape(0), weights.shape(1), named(TYPES, type));
    return std::make_shared<Layered>(
        Layered{std::make_shared<Packed>(weights.data(), bias ? bias->data() : nullptr, (int)weights.shape(0),
                                         (int)weights.shape(1), named(TYPES, type)),
                nullptr});
}

std::shared_ptr<Layered> packed(py::buffer weights, std::optional<Floats> bias, std::optional<Floats> scales,
                                int outputs, int inputs, const std::string& type) {
    const Linear shape{outputs, inputs, named(TYPES, type)};
    check_shape(outputs, inputs, shape.type);
    auto info = std::make_shared<py::buffer_info>(weights.request());
    require((size_t)(info->size * info->itemsize) == shape.bytes(), "packed weights of another size");
    require(info->ndim == 1 && info->strides[0] == info->itemsize, "packed weights that do not lie in one piece");
    require(!bias || bias->size() == outputs, "a bias for each output");
    require(shape.type != Type::int8 || (scales && scales->size() == outputs), "a scale for each output");
    return std::make_shared<Layered>(
        Layered{std::make_shared<Packed>(info->ptr, bias ? bias->data() : nullptr, scales ? scales->data() : nullptr,
                                         outputs, inputs, shape.type),
                info});
}

// Builds a Network from nested dictionaries; what they name is kept as long as it.
struct Model {
    std::shared_ptr<Network> network = std::make_shared<Network>();
    std::vector<py::object> keep;

    // What is named there; nothing where the model has no such part.
    static py::dict part(const py::dict& from, const char* name) {
        return from.contains(name) ? from[name].cast<py::dict>() : py::dict();
    }

    const Linear* linear(const py::dict& from, const char* name) {
        if (!from.contains(name)) return nullptr;
        auto layer = from[name].cast<std::shared_ptr<Layered>>();
        keep.push_back(from[name]);
        return &layer->packed->linear;
    }

    const Linear* linear(const py::dict& from, const char* name, int outputs, int inputs) {
        const Linear* found = linear(from, name);
        if (found && (found->outputs != outputs || found->inputs != inputs))
            throw py::value_error(std::string(name) + " has another shape than its layer says");
        return found;
    }

    const float* floats(const py::object& from, py::ssize_t size) {
        if (from.is_none()) return nullptr;
        const auto values = array_of<Floats>(from);
        require(values && values->size() == size, "an array of another size than its layer says");
        keep.push_back(*values);
        return values->data();
    }

    Norm norm(const py::dict& from, const char* name, int channels = 0) {
        Norm made;
        const int features = channels ? channels : network->features;
        if (!from.contains(name)) return made;
        const auto parts = from[name].cast<py::tuple>();  // gain, bias or None, eps
        made.gain = floats(parts[0], features);
        made.bias = floats(parts[1], features);
        made.eps = parts[2].cast<float>();
        return made;
    }

    FeedForward feed_forward(const py::dict& layer, const std::string& name) {
        FeedForward made;
        const py::dict from = part(layer, name.c_str());
        const int d = network->features;
        made.activation = named(ACTIVATIONS, from["activation"].cast<std::string>());
        made.up = linear(from, "up");
        require(made.up && made.up->inputs == d, "a layer lacks a part");
        made.gate = linear(from, "gate", made.up->outputs, d);
        made.down = linear(from, "down", d, made.up->outputs);
        require(made.down, "a layer lacks a part");
        made.norm = norm(layer, (name + "_norm").c_str());
        return made;
    }

    Depthwise depthwise(const py::dict& from, const char* name, int channels) {
        const auto parts = from[name].cast<py::tuple>();  // taps [size,channels], channels filled up, and bias
        Depthwise made;
        made.channels = channels;
        made.size = (int)parts[0].cast<py::array>().shape(0);
        made.taps = floats(parts[0], made.size * (py::ssize_t)rounded(channels, LANES));
        made.bias = floats(parts[1], rounded(channels, LANES));
        return made;
    }

    Gating gating(const py::dict& layer, const std::string& name) {
        Gating made;
        const py::dict from = part(layer, name.c_str());
        const int d = network->features;
        made.of_gate = from["of_gate"].cast<bool>();
        made.up = linear(from, "up");
        require(made.up && made.up->inputs == d && made.up->outputs % 2 == 0, "a gate for each channel");
        const int channels = made.up->outputs / 2;
        made.down = linear(from, "down", d, channels);
        require(made.down, "a layer lacks a part");
        made.depthwise = depthwise(from, "depthwise", channels);
        made.norm = norm(layer, (name + "_norm").c_str());
        made.inner = norm(from, "norm", channels);
        require(made.norm.gain && (!made.of_gate || made.inner.gain), "a layer lacks a norm");
        return made;
    }

    Layer layer(const py::dict& from, bool decodes) {
        Layer made;
        const int d = network->features;
        const py::dict attention = part(from, "self_attention"), cross = part(from, "cross_attention"),
                       merge = part(from, "merge");
        made.norm_first = from["norm_first"].cast<bool>();
        made.heads = attention["heads"].cast<int>();
        made.features = attention["features"].cast<int>();
        require(made.heads > 0 && made.features > 0 && made.features % LANES == 0,
                "a head's features are a multiple of 16");
        made.scale = attention["scale"].cast<float>();
        const int width = made.width();
        made.qkv = linear(attention, "qkv", 3 * width, d);
        made.out = linear(attention, "out", d, width);
        made.cross_q = linear(cross, "q", width, d);
        made.cross_kv = linear(cross, "kv", 2 * width, d);
        made.cross_out = linear(cross, "out", d, width);
        require(made.qkv && made.out, "a layer lacks a part");
        const bool reads = made.cross_q && made.cross_kv && made.cross_out;
        require(reads || !(decodes || made.cross_q), "a layer does not see the source");
        made.self_norm = norm(from, "self_norm");
        made.cross_norm = norm(from, "cross_norm");
        if (from.contains("ffn")) {
            made.ffn = feed_forward(from, "ffn");
            return made;
        }
        // What layers of speech have in place of that, and beside attention.
        made.ffn_before = feed_forward(from, "ffn1");
        made.ffn = feed_forward(from, "ffn2");
        made.distances = linear(attention, "positions", width, d);
        if (made.distances) {
            made.content = floats(attention["bias_u"], width);
            made.position = floats(attention["bias_v"], width);
        }
        made.gating = gating(from, from.contains("cgmlp") ? "cgmlp" : "conv");
        made.merge_out = linear(merge, "out", d, 2 * d);
        if (made.merge_out) made.merge = depthwise(merge, "depthwise", 2 * d);
        made.final_norm = norm(from, "final_norm");
        made.conditioned = from["conditioned"].cast<bool>();
        require(!made.conditioned || (network->ctc && network->condition), "a layer reads what nothing predicts");
        return made;
    }

    Stack stack(const py::dict& from, bool decodes) {
        Stack made;
        const py::dict embedding = part(from, "embedding");
        made.embedding.words = linear(embedding, "words");
        require(made.embedding.words ? made.embedding.words->inputs == network->features : !decodes,
                "words of another size");
        made.embedding.scale = embedding["scale"].cast<float>();
        made.embedding.count = embedding["count"].cast<int>();
        if (embedding.contains("positions"))
            made.embedding.positions =
                floats(embedding["positions"], (py::ssize_t)made.embedding.count * network->features);
        made.embedding.norm = norm(embedding, "norm");
        for (const auto& each : from["layers"].cast<py::list>())
            made.layers.push_back(layer(each.cast<py::dict>(), decodes));
        made.norm = norm(from, "norm");
        if (made.layers.empty() || !from.contains("relative")) return made;
        made.farthest = from["farthest"].cast<int>();
        made.relative = floats(from["relative"], made.layers[0].heads * (2 * (py::ssize_t)made.farthest + 1));
        for (const Layer& each : made.layers)
            require(each.heads == made.layers[0].heads, "biases by distance of other heads than a layer's");
        return made;
    }

    Subsampling subsampling(const py::dict& encoder) {
        Subsampling made;
        const py::dict from = part(encoder, "frames"), layers = part(encoder, "subsample");
        const auto strides = from["strides"].cast<std::vector<int>>();
        const auto taps_of_each = (layers.contains("conv") ? layers : encoder)["conv"].cast<py::list>();
        made.images = from["images"].cast<bool>();
        made.features = from["features"].cast<int>();
        made.activation = named(ACTIVATIONS, from["activation"].cast<std::string>());
        int left = made.images ? made.features : 1, channels = made.images ? 1 : made.features;
        for (size_t i = 0; i < strides.size(); i++) {
            const Linear* taps = &taps_of_each[i].cast<std::shared_ptr<Layered>>()->packed->linear;
            made.convolutions.push_back({taps, strides[i]});
            keep.push_back(taps_of_each[i]);
            require(taps->inputs == 3 * channels * (made.images ? 3 : 1), "a convolution of another size");
            if (made.images) left = left < 3 ? 0 : (left - 3) / strides[i] + 1;
            channels = taps->outputs;
        }
        require(!made.convolutions.empty() && left > 0, "convolutions that leave no features");
        made.out = linear(layers, "out", network->features, left * channels);
        require(made.out || left * channels == network->features, "positions of other features");
        return made;
    }

    Parallel parallel(const py::dict& from) {
        Parallel made;
        const int d = network->features;
        made.copied = named(COPIES, from["copied"].cast<std::string>());
        if (from.contains("frames")) made.frames = from["frames"].cast<int>();
        if (from.contains("temperature")) made.temperature = from["temperature"].cast<float>();
        made.lengths = linear(from, "lengths");
        require(!made.lengths || made.lengths->inputs == d, "a length predictor of another size");
        const py::dict cif = part(from, "cif"), links = part(from, "links");
        made.fire_out = linear(cif, "out", 1, d);
        if (made.fire_out) {
            made.tail = cif["tail"].cast<double>();
            if (py::isinstance<py::tuple>(cif["conv"]))
                made.fire_depthwise = depthwise(cif, "conv", d);
            else
                made.fire_taps = linear(cif, "conv", d, 3 * d);
        }
        made.query = linear(links, "query");
        if (!made.query) return made;
        made.by_features = links["by_features"].cast<bool>();
        made.longest_link = links["longest_link"].cast<int>();
        if (links.contains("positions"))
            made.positions = floats(links["positions"], (py::ssize_t)network->most_target * d);
        const int inputs = d * ((int)made.by_features + (made.positions != nullptr));
        made.query = linear(links, "query", d, inputs);
        made.key = linear(links, "key", d, inputs);
        made.gate = linear(links, "gate");
        require(made.key && made.gate && made.gate->inputs == inputs && d % made.gate->outputs == 0,
                "links lack a part, or have one of another size");
        return made;
    }

    explicit Model(const py::dict& from) {
        network->features = from["features"].cast<int>();
        const int d = network->features;
        network->ctc = linear(from, "ctc");
        require(!network->ctc || network->ctc->inputs == d, "a CTC head of another size");
        if (network->ctc) network->condition = linear(from, "condition", d, network->ctc->outputs);
        if (network->condition) network->condition_normed = from["condition_normed"].cast<bool>();
        const py::dict encoder = part(from, "encoder"), output = part(from, "output");
        network->encoder = stack(encoder, false);
        if (encoder.contains("prompt")) network->prompt = stack(part(encoder, "prompt"), false);
        if (from.contains("decoder")) network->decoder = stack(part(from, "decoder"), true);
        network->output = from.contains("output") ? linear(output, "words") : network->ctc;
        require(network->output && network->output->inputs == network->features, "an output layer of another size");
        if (from.contains("output")) network->output_scale = output["scale"].cast<float>();
        if (output.contains("bias") && !output["bias"].is_none()) {
            network->biased = *network->output;
            network->biased.bias = floats(output["bias"], network->output->width());
            network->output = &network->biased;
        }
        network->words = network->output->outputs;
        network->most_source = network->encoder.embedding.count;
        network->most_target = network->decoder.embedding.count;
        const Linear* read = network->encoder.embedding.words;
        if (encoder.contains("frames")) {
            network->subsampling = subsampling(encoder);
            network->most_source = part(encoder, "frames")["most"].cast<int>();
            read = network->prompt.embedding.words;
            const int front = read ? network->prompt.embedding.count : 0;
            require(network->subsampling.positions(network->most_source) <= network->encoder.embedding.count - front,
                    "a position for each of a source's");
        }
        network->source_words = read ? read->outputs : 0;
        for (const Layer& each : network->encoder.layers)
            require(!each.cross_q || !network->prompt.layers.empty(), "a layer of the encoder reads no prompt");
        const Linear* said = network->decoder.embedding.words;
        require(!said || said->outputs == network->words, "as many words are read as written");
        if (from.contains("copied")) network->parallel = parallel(from);
    }
};

// An engine, and the model that it needs.
struct Runner {
    std::shared_ptr<Model> model;
    Engine engine;

    Runner(std::shared_ptr<Model> model, const std::string& isa, int threads)
        : model(model), engine(model->network, &kernels_of(isa), threads) {
        require(threads > 0, "an engine has threads");
        engine.interrupted = look;
    }

    static void look() {
        static thread_local std::chrono::steady_clock::time_point looked;  // only the main thread finds something
        const auto now = std::chrono::steady_clock::now();
        if (now - looked < PATIENCE) return;
        looked = now;
        py::gil_scoped_acquire lock;
        if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    }
};

// A method of an engine that takes handles.
template <class Body>
auto of_handles(Body body) {
    return [body](Runner& runner, const py::object& from) {
        const Ints handles = ints(from);
        return body(runner.engine, handles.data(), (int)handles.size());
    };
}

// What a pass gave; dropped without `commit`, nothing of it is kept.
struct Scores {
    std::shared_ptr<Runner> runner;
    std::shared_ptr<Pending> pending;
    const Linear* head;
    std::vector<float> features;
    py::object best, log_probs, top = py::none(), top_log_probs = py::none(), margins = py::none(),
                                given_log_probs = py::none(), drawn = py::none(), drawn_log_probs = py::none(),
                                hidden = py::none();

    ~Scores() {
        if (pending && pending->open) {
            try {
                runner->engine.cells.end(*pending, nullptr, 0);
            } catch (...) {
            }
        }
    }

    Floats rows(const py::object& which) const {
        const Ints index = ints(which);
        if (pending && !pending->open) throw PassFault("the pass has ended: its logits are gone");
        const int d = runner->engine.network->features, words = head->outputs;
        const py::ssize_t count = index.size();
        std::vector<float> some((size_t)count * d);
        for (py::ssize_t i = 0; i < count; i++) {
            const int at = index.data()[i];
            if (at < 0 || (size_t)at * d >= features.size()) throw PassFault("token " + number(at) + " was not scored");
            std::copy_n(features.data() + (size_t)at * d, d, some.data() + (size_t)i * d);
        }
        Floats made({count, (py::ssize_t)words});
        float* to = made.mutable_data();
        py::gil_scoped_release release;
        runner->engine.logits(*head, some.data(), (int)count, to);
        return made;
    }
};

// A nartk.protocols.passes.Want of n tokens, of a model of `all` words; checked, with the arrays that it points into.
struct Wanted {
    Want want;
    bool hidden;
    std::optional<Ints> ban_offsets, banned, given;
    std::optional<Doubles> uniforms;

    Wanted(py::ssize_t n, int all, const py::object& from) : hidden(from.attr("hidden").cast<bool>()) {
        if (const auto only = maybe<Ints>(from.attr("only"), "only", -1)) {
            want.only.assign(only->data(), only->data() + only->size());
            for (size_t i = 0; i < want.only.size(); i++)
                if (want.only[i] < 0 || want.only[i] >= n || (i && want.only[i] <= want.only[i - 1]))
                    throw PassFault("scored tokens are ascending indices of the pass");
        } else {
            want.only.resize(n);
            for (int i = 0; i < n; i++) want.only[i] = i;
        }
        const py::ssize_t scored = (py::ssize_t)want.only.size();
        if (const py::object lists = from.attr("banned"); !lists.is_none()) {
            ban_offsets = column<Ints>(lists.attr("offsets"), "banned.offsets", scored + 1);
            banned = column<Ints>(lists.attr("values"), "banned.values", -1);
            const int* offsets = ban_offsets->data();
            if (offsets[0] != 0 || offsets[scored] != banned->size())
                throw PassFault("lists of forbidden words begin at 0 and end with the last");
            for (py::ssize_t i = 0; i < scored; i++)
                if (offsets[i] > offsets[i + 1]) throw PassFault("lists of forbidden words ascend");
            for (py::ssize_t i = 0; i < banned->size(); i++)
                if (banned->data()[i] < 0 || banned->data()[i] >= all)
                    throw PassFault("a forbidden word is none of the model's");
            want.ban_offsets = offsets;
            want.banned = banned->data();
        }
        want.top = from.attr("top").cast<int>();
        if (want.top < 0) throw PassFault(number(want.top) + " likeliest words are asked for");
        want.margin = from.attr("margin").cast<bool>();
        given = maybe<Ints>(from.attr("given"), "given", scored);
        if (given) {
            for (py::ssize_t i = 0; i < scored; i++)
                if (given->data()[i] < -1 || given->data()[i] >= all)
                    throw PassFault("a given word is none of the model's");
            want.given = given->data();
        }
        if (const py::object draw = from.attr("draw"); !draw.is_none()) {
            uniforms = column<Doubles>(draw.attr("uniforms"), "uniforms", scored);
            want.draw = {uniforms->data(), draw.attr("temperature").cast<double>(), draw.attr("top_p").cast<double>(),
                         draw.attr("top_k").cast<int>()};
            for (py::ssize_t i = 0; i < scored; i++)
                if (!(uniforms->data()[i] >= 0.0 && uniforms->data()[i] < 1.0))
                    throw PassFault("`uniforms` holds a number that is not in [0, 1)");
            if (!(want.draw.temperature > 0.0) || std::isinf(want.draw.temperature) || want.draw.top_k < 0 ||
                !(want.draw.top_p > 0.0) || want.draw.top_p > 1.0)
                throw PassFault("temperature, top-k or top-p is out of bounds");
        }
    }

    // What `read` reads, which runs without Python's lock.
    template <class Reader>
    std::shared_ptr<Scores> scores(std::shared_ptr<Runner> runner, Reader reader, const Linear* head = nullptr) const {
        auto made = std::make_shared<Scores>();
        made->runner = runner;
        made->head = head ? head : runner->engine.network->output;
        Read read;
        read.head = made->head;
        {
            py::gil_scoped_release release;
            reader(*made, read);
        }
        made->best = array(read.best);
        made->log_probs = array(read.log_probs);
        if (want.top) {
            made->top = matrix(read.top, want.top);
            made->top_log_probs = matrix(read.top_log_probs, want.top);
        }
        if (want.margin) made->margins = array(read.margins);
        if (given) made->given_log_probs = array(read.given_log_probs);
        if (uniforms) {
            made->drawn = array(read.drawn);
            made->drawn_log_probs = array(read.drawn_log_probs);
        }
        if (hidden) made->hidden = matrix(read.hidden, runner->engine.network->features);
        made->features = std::move(read.hidden);
        return made;
    }
};

std::shared_ptr<Scores> run(std::shared_ptr<Runner> runner, py::object words_given, py::object positions_given,
                            py::object memories_given, py::object contexts_given, py::object parents_given,
                            const py::object& want) {
    const Ints words = column<Ints>(words_given, "tokens", -1);
    const py::ssize_t n = words.size();
    const Ints positions = column<Ints>(positions_given, "positions", n),
               memories = column<Ints>(memories_given, "memory", n),
               contexts = column<Ints>(contexts_given, "contexts", n),
               parents = column<Ints>(parents_given, "parents", n);
    const Wanted wanted(n, runner->engine.network->words, want);
    return wanted.scores(runner, [&](Scores& scores, Read& read) {
        scores.pending = runner->engine.run(
            {(int)n, words.data(), positions.data(), memories.data(), contexts.data(), parents.data()}, wanted.want,
            read);
    });
}

// The arrays of a canvas, checked.
struct Places {
    Ints memories, lengths, words;

    Places(const py::object& memories_given, const py::object& lengths_given, const py::object& words_given)
        : memories(ints(memories_given)), lengths(ints(lengths_given)), words(ints(words_given)) {
        py::ssize_t total = 0;
        for (py::ssize_t i = 0; i < lengths.size(); i++) total += std::max(0, lengths.data()[i]);
        if (memories.size() != lengths.size() || total != words.size())
            throw PassFault("the arrays of a canvas differ in length");
    }

    Canvas canvas() const { return {(int)memories.size(), memories.data(), lengths.data(), words.data()}; }
};

// Fires [N,d] may be given in place of those of the sources.
std::shared_ptr<Scores> fill(std::shared_ptr<Runner> runner, py::object memories, py::object lengths, py::object words,
                             const py::object& want, const std::optional<Floats>& fired) {
    const Places places(memories, lengths, words);
    Canvas canvas = places.canvas();
    if (fired) {
        const Network& network = *runner->engine.network;
        if (network.parallel.copied != Copied::fires || fired->ndim() != 2 || fired->shape(1) != network.features ||
            fired->shape(0) != places.words.size())
            throw PassFault("fires that the model does not read");
        canvas.fired = fired->data();
    }
    const Wanted wanted(places.words.size(), runner->engine.network->words, want);
    return wanted.scores(runner, [&](Scores&, Read& read) {
        runner->engine.fill(canvas, wanted.want.only, read.hidden);
        runner->engine.read(wanted.want, read);
    });
}

// What positions of encoded sources say to the CTC head.
std::shared_ptr<Scores> read_encoded(std::shared_ptr<Runner> runner, py::object of, const py::object& want) {
    Engine& engine = runner->engine;
    const Linear* head = engine.network->ctc;
    if (!head) throw PassFault("the model has no CTC head");
    const Ints memories = ints(of);
    py::ssize_t count = 0;
    for (py::ssize_t i = 0; i < memories.size(); i++) count += engine.memory(memories.data()[i])->length;
    const Wanted wanted(count, head->outputs, want);
    const auto reader = [&](Scores&, Read& read) {
        engine.read_encoded(memories.data(), (int)memories.size(), wanted.want, read);
    };
    return wanted.scores(runner, reader, head);
}

// Words at features [n,d] that a graph gave.
std::shared_ptr<Scores> words_at(std::shared_ptr<Runner> runner, Floats features, const py::object& want) {
    const int d = runner->engine.network->features;
    if (features.ndim() != 2 || features.shape(1) != d) throw PassFault("features of another size");
    const Wanted wanted(features.shape(0), runner->engine.network->words, want);
    return wanted.scores(runner, [&](Scores&, Read& read) {
        for (int index : wanted.want.only) {
            const float* row = features.data() + (size_t)index * d;
            read.hidden.insert(read.hidden.end(), row, row + d);
        }
        runner->engine.read(wanted.want, read);
    });
}

// Features [N,d] of the vertices of graphs, and their links, [L,L] of each graph behind each other.
py::tuple graph(Runner& runner, py::object memories, py::object lengths, py::object words) {
    const Places places(memories, lengths, words);
    const Canvas canvas = places.canvas();
    std::vector<int> every(places.words.size());
    for (size_t i = 0; i < every.size(); i++) every[i] = (int)i;
    py::ssize_t edges = 0;
    for (int b = 0; b < canvas.rows; b++) edges += (py::ssize_t)canvas.lengths[b] * canvas.lengths[b];
    Floats links(edges);
    float* to = links.mutable_data();
    std::vector<float> hidden;
    {
        py::gil_scoped_release release;
        runner.engine.fill(canvas, every, hidden);
        runner.engine.links(hidden.data(), canvas.lengths, canvas.rows, to);
    }
    return py::make_tuple(matrix(hidden, runner.engine.network->features), links);
}

Floats length_logits(Runner& runner, const py::object& of) {
    const Linear* predictor = runner.engine.network->parallel.lengths;
    if (!predictor) throw PassFault("the model predicts no lengths");
    const Ints memories = ints(of);
    Floats made({memories.size(), (py::ssize_t)predictor->outputs});
    float* to = made.mutable_data();
    py::gil_scoped_release release;
    runner.engine.length_logits(memories.data(), (int)memories.size(), to);
    return made;
}

py::array_t<int32_t> encode(Runner& runner, const py::object& all, const py::object& of_each) {
    const Ints tokens = ints(all), lengths = ints(of_each);
    py::ssize_t total = 0;
    for (py::ssize_t i = 0; i < lengths.size(); i++) total += std::max(0, lengths.data()[i]);
    if (total != tokens.size()) throw PassFault("sources of other lengths than are said");
    std::vector<int> made;
    {
        py::gil_scoped_release release;
        made = runner.engine.encode(tokens.data(), lengths.data(), (int)lengths.size());
    }
    return array(made);
}

// Sources of frames [T,F], each with words in front of them and a prompt.
py::array_t<int32_t> encode_speech(Runner& runner, const py::list& frames, const py::list& words,
                                   const py::list& prompts) {
    const int features = runner.engine.network->subsampling.features;
    std::vector<Floats> all;
    std::vector<Ints> read;
    std::vector<Engine::Speech> sources;
    if (words.size() != frames.size() || prompts.size() != frames.size()) throw PassFault("words for each source");
    for (size_t i = 0; i < frames.size(); i++) {
        const auto each = array_of<Floats>(frames[i]);
        if (!each || each->ndim() != 2 || each->shape(1) != features || each->shape(0) > INT32_MAX)
            throw PassFault("source " + number((long long)i) + " is no frames of " + number(features) + " features");
        const Ints front = ints(words[i]), prompt = ints(prompts[i]);
        sources.push_back(
            {each->data(), (int)each->shape(0), front.data(), prompt.data(), (int)front.size(), (int)prompt.size()});
        all.push_back(*each);
        read.insert(read.end(), {front, prompt});
    }
    std::vector<int> made;
    {
        py::gil_scoped_release release;
        made = runner.engine.encode_speech(sources);
    }
    return array(made);
}

// Single kernels, for tests.
Floats apply(const Layered& layer, Floats x, const std::string& isa, std::optional<std::string> activation) {
    const Linear& w = layer.packed->linear;
    const Kernels& kernels = kernels_of(isa);
    require(x.ndim() == 2 && x.shape(1) == w.inputs, "inputs of another size than the weights");
    const Rounding rounding;
    const int n = (int)x.shape(0), stride = w.groups() * w.group();
    std::vector<uint8_t> quantised((size_t)n * stride * 2 + 64);
    std::vector<float> scales(n + 1);
    const void* inputs = x.data();
    if (w.type == Type::bf16) kernels.to_bf16(x.data(), n, w.inputs, w.inputs, (uint16_t*)quantised.data(), stride);
    if (w.type == Type::int8) kernels.to_int8(x.data(), n, w.inputs, w.inputs, quantised.data(), stride, scales.data());
    if (w.type != Type::fp32) inputs = quantised.data();
    std::vector<float> y((size_t)n * w.width() + LANES);
    kernels.linear(w, inputs, scales.data(), n, stride, y.data(), w.width(), 0, w.panels(),
                   {activation ? named(ACTIVATIONS, *activation) : Activation::none, false});
    Floats made({(py::ssize_t)n, (py::ssize_t)w.outputs});
    for (int i = 0; i < n; i++)
        std::copy_n(y.data() + (size_t)i * w.width(), w.outputs, made.mutable_data() + (size_t)i * w.outputs);
    return made;
}

Floats apply_int16(Floats weights, Floats x, const std::string& isa) {
    const Kernels& kernels = kernels_of(isa);
    require(x.ndim() == 2 && weights.ndim() == 2 && x.shape(1) == weights.shape(1) && x.shape(1) <= MOST_INT16,
            "inputs of another size than the weights");
    const Rounding rounding;
    const int n = (int)x.shape(0), m = (int)weights.shape(0), k = (int)x.shape(1);
    Linear w{m, k, Type::int16};
    const int stride = 2 * w.groups(), wide = w.width();
    std::vector<int16_t> rows((size_t)(n + m) * stride), panels((size_t)wide * stride);
    std::vector<float> scales(n + wide), zeros(wide), y((size_t)n * wide + LANES);
    kernels.to_int16(x.data(), n, k, k, rows.data(), stride, scales.data());
    int16_t* own = rows.data() + (size_t)n * stride;
    kernels.to_int16(weights.data(), m, k, k, own, stride, scales.data() + n);
    for (int j = 0; j < m; j++)
        for (int i = 0; i < stride; i++)
            panels[(((size_t)(j / PANEL) * w.groups() + i / 2) * PANEL + j % PANEL) * 2 + i % 2] = own[j * stride + i];
    w.weights = panels.data();
    w.bias = zeros.data();
    w.scales = scales.data() + n;
    kernels.linear(w, rows.data(), scales.data(), n, stride, y.data(), wide, 0, w.panels(), {});
    Floats made({(py::ssize_t)n, (py::ssize_t)m});
    for (int i = 0; i < n; i++) std::copy_n(y.data() + (size_t)i * wide, m, made.mutable_data() + (size_t)i * m);
    return made;
}

py::tuple int16_exponentials(Floats scores, const std::string& isa) {
    const Rounding rounding;
    const int n = (int)scores.size();
    std::vector<int16_t> made(rounded(n, LANES), -1);
    const float total = kernels_of(isa).int16_exponentials(scores.data(), n, made.data());
    return py::make_tuple(array(made), total);
}

Floats attend(Floats q, Floats keys, Floats values, float scale, const std::string& isa, bool halves) {
    const Kernels& kernels = kernels_of(isa);
    require(keys.ndim() == 2 && keys.shape(1) == q.size() && q.size() % LANES == 0,
            "keys of another size than the query");
    require(values.ndim() == 2 && values.shape(0) == keys.shape(0) && values.shape(1) == keys.shape(1),
            "a value for each key");
    const Rounding rounding;
    const int d = (int)q.size(), n = (int)keys.shape(0);
    std::vector<float> rows((size_t)n * 2 * d), scores(n + LANES);
    std::vector<const float*> list(n);
    for (int i = 0; i < n; i++) {
        float* row = rows.data() + (size_t)i * 2 * d;
        list[i] = row;
        if (halves) {
            kernels.to_fp16(keys.data() + (size_t)i * d, d, (uint16_t*)row);
            kernels.to_fp16(values.data() + (size_t)i * d, d, (uint16_t*)row + d);
            continue;
        }
        std::copy_n(keys.data() + (size_t)i * d, d, row);
        std::copy_n(values.data() + (size_t)i * d, d, row + d);
    }
    Floats made(d);
    kernels.attend(q.data(), {list.data(), n, halves}, 0, d, d, scale, nullptr, scores.data(), made.mutable_data());
    return made;
}

Floats norm(Floats x, Floats gain, std::optional<Floats> bias, float eps, const std::string& isa) {
    const Kernels& kernels = kernels_of(isa);
    require(gain.size() == x.size() && (!bias || bias->size() == x.size()), "a gain and a bias for each feature");
    const Rounding rounding;
    Floats made(x.size());
    if (bias)
        kernels.layer_norm(x.data(), (int)x.size(), gain.data(), bias->data(), eps, made.mutable_data());
    else
        kernels.rms_norm(x.data(), (int)x.size(), gain.data(), eps, made.mutable_data());
    return made;
}

}  // namespace

// The sources that this was compiled from (nartk/engine/stamp.py), which setup.py defines.
#ifndef NARTK_SOURCES
#define NARTK_SOURCES unknown
#endif
#define NARTK_TEXT_OF(name) #name
#define NARTK_TEXT(name) NARTK_TEXT_OF(name)

PYBIND11_MODULE(_native, m) {
    m.attr("sources") = NARTK_TEXT(NARTK_SOURCES);
    py::register_exception_translator([](std::exception_ptr thrown) {
        try {
            std::rethrow_exception(thrown);
        } catch (const PassFault& fault) {
            py::set_error(py::module_::import("nartk.errors").attr("PassError"), fault.what());
        }
    });
    m.def("isa", [](const std::string& name) { return std::string(kernels_of(name).name); }, py::arg("name") = "");
    m.def("multiplies_bf16", [](const std::string& name) { return kernels_of(name).bf16; }, py::arg("name") = "");
    m.def("cores", &Threads::available);
    m.def("apply", &apply, py::arg("layer"), py::arg("x"), py::arg("isa") = "", py::arg("activation") = py::none());
    m.def("apply_int16", &apply_int16, py::arg("weights"), py::arg("x"), py::arg("isa") = "");
    m.def("int16_exponentials", &int16_exponentials, py::arg("scores"), py::arg("isa") = "");
    m.def("attend", &attend, py::arg("q"), py::arg("keys"), py::arg("values"), py::arg("scale"), py::arg("isa") = "",
          py::arg("halves") = false);
    m.def("norm", &norm, py::arg("x"), py::arg("gain"), py::arg("bias"), py::arg("eps"), py::arg("isa") = "");

    py::class_<Layered, std::shared_ptr<Layered>>(m, "Linear")
        .def_static("pack", &pack, py::arg("weights"), py::arg("bias"), py::arg("type"))
        .def_static("packed", &packed, py::arg("weights"), py::arg("bias"), py::arg("scales"), py::arg("outputs"),
                    py::arg("inputs"), py::arg("type"))
        .def_property_readonly("outputs", [](const Layered& l) { return l.packed->linear.outputs; })
        .def_property_readonly("inputs", [](const Layered& l) { return l.packed->linear.inputs; })
        .def_property_readonly("weights",
                               [](const Layered& l) {
                                   return py::array_t<uint8_t>((py::ssize_t)l.packed->linear.bytes(),
                                                               static_cast<const uint8_t*>(l.packed->linear.weights));
                               })
        .def_property_readonly("scales", [](const Layered& l) -> py::object {
            if (!l.packed->linear.scales) return py::none();
            return Floats(l.packed->linear.outputs, l.packed->linear.scales);
        });

    py::class_<Model, std::shared_ptr<Model>>(m, "Model").def(py::init<const py::dict&>());

    py::class_<Scores, std::shared_ptr<Scores>>(m, "Scores")
        .def_readonly("best", &Scores::best)
        .def_readonly("log_probs", &Scores::log_probs)
        .def_readonly("top", &Scores::top)
        .def_readonly("top_log_probs", &Scores::top_log_probs)
        .def_readonly("margins", &Scores::margins)
        .def_readonly("given_log_probs", &Scores::given_log_probs)
        .def_readonly("drawn", &Scores::drawn)
        .def_readonly("drawn_log_probs", &Scores::drawn_log_probs)
        .def_readonly("hidden", &Scores::hidden)
        .def("rows", &Scores::rows);

    py::class_<Runner, std::shared_ptr<Runner>>(m, "Engine")
        .def(py::init<std::shared_ptr<Model>, const std::string&, int>(), py::arg("model"), py::arg("isa"),
             py::arg("threads"))
        .def("encode", &encode)
        .def("free", of_handles([](Engine& e, const int* memories, int count) { e.free(memories, count); }))
        .def("open", [](Runner& r, int count) { return array(r.engine.cells.open(count)); })
        .def("fork",
             of_handles([](Engine& e, const int* contexts, int count) { return array(e.cells.fork(contexts, count)); }))
        .def("truncate",
             [](Runner& r, const py::object& which, const py::object& kept) {
                 const Ints contexts = ints(which), lengths = ints(kept);
                 if (lengths.size() != contexts.size()) throw PassFault("a length for each context");
                 r.engine.cells.truncate(contexts.data(), lengths.data(), (int)contexts.size());
             })
        .def("close", of_handles([](Engine& e, const int* contexts, int count) { e.cells.close(contexts, count); }))
        .def("commit",
             [](Runner& r, const py::object& of, const py::object& which) {
                 if (!py::isinstance<Scores>(of)) throw PassFault("what is committed is not what `run` gave");
                 const Scores& scores = of.cast<const Scores&>();
                 if (scores.runner.get() != &r || !scores.pending) throw PassFault("the pass is another engine's");
                 const Ints kept = ints(which);
                 r.engine.cells.end(*scores.pending, kept.data(), (int)kept.size());
             })
        .def("output",
             [](Runner& r, int memory) {
                 const auto found = r.engine.memory(memory);
                 return matrix(found->output, r.engine.network->features);
             })
        .def_property_readonly("cells_in_use", [](Runner& r) { return r.engine.cells.in_use(); })
        .def_property_readonly("memories_in_use", [](Runner& r) { return r.engine.memories_in_use(); })
        .def("source_lengths", of_handles([](Engine& e, const int* memories, int count) {
                 Ints made(count);
                 for (int i = 0; i < count; i++) made.mutable_data()[i] = e.memory(memories[i])->length;
                 return made;
             }))
        .def("encode_speech", &encode_speech)
        .def("fires", of_handles([](Engine& e, const int* memories, int count) {
                 Ints made(count);
                 for (int i = 0; i < count; i++) made.mutable_data()[i] = e.memory(memories[i])->fires;
                 return made;
             }))
        .def("fire_weights", [](Runner& r, int memory) { return array(r.engine.memory(memory)->fire_weights); })
        .def("read_encoded", &read_encoded)
        .def("length_logits", &length_logits)
        .def("graph", &graph)
        .def("fill", &fill, py::arg("memories"), py::arg("lengths"), py::arg("words"), py::arg("want"),
             py::arg("fired") = py::none())
        .def("words", &words_at, py::arg("features"), py::arg("want"))
        .def("run", &run, py::arg("words"), py::arg("positions"), py::arg("memories"), py::arg("contexts"),
             py::arg("parents"), py::arg("want"));
}
