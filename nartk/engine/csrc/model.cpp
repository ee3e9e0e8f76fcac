// Packed layers, and a network built from the dictionaries that nartk.engine.weights nests.
#include "bindings.h"

namespace nartk {

namespace {

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

void check_shape(py::ssize_t outputs, py::ssize_t inputs, Type type) {
    require(outputs > 0 && inputs > 0 && outputs < INT32_MAX - PANEL && inputs < INT32_MAX - PANEL,
            "a layer has inputs and outputs");
    require(type != Type::int8 || inputs <= MOST_INT8, "too many inputs for int8");
}

std::shared_ptr<Layered> pack(Floats weights, std::optional<Floats> bias, const std::string& type,
                              std::optional<Floats> scales) {
    require(weights.ndim() == 2, "weights are a matrix");
    require(!bias || bias->size() == weights.shape(0), "a bias for each output");
    require(!scales || scales->size() == weights.shape(0), "a scale for each output");
    check_shape(weights.shape(0), weights.shape(1), named(TYPES, type));
    return std::make_shared<Layered>(
        Layered{std::make_shared<Packed>(weights.data(), bias ? bias->data() : nullptr, (int)weights.shape(0),
                                         (int)weights.shape(1), named(TYPES, type),
                                         scales ? scales->data() : nullptr),
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
struct Builder {
    std::shared_ptr<Network> network = std::make_shared<Network>();
    std::vector<py::object> keep;
    int width = 0;   // features of the stack whose layers are read
    int source = 0;  // features of what its cross-attention reads

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
        made.features = channels ? channels : width;
        if (!from.contains(name)) return made;
        const auto parts = from[name].cast<py::tuple>();  // gain, bias or None, eps
        made.gain = floats(parts[0], made.features);
        made.bias = floats(parts[1], made.features);
        made.eps = parts[2].cast<float>();
        return made;
    }

    // A convolution over an odd number of positions of so many channels.
    static bool odd(const Linear& taps, int channels) { return taps.inputs % (2 * channels) == channels; }

    // convolves: its layers read neighbouring positions too, an odd number of them.
    FeedForward feed_forward(const py::dict& layer, const std::string& name, bool convolves = false) {
        FeedForward made;
        const py::dict from = part(layer, name.c_str());
        const int d = width;
        made.activation = named(ACTIVATIONS, from["activation"].cast<std::string>());
        made.up = linear(from, "up");
        made.down = linear(from, "down");
        require(made.up && made.down && made.down->outputs == d, "a layer lacks a part");
        const int inner = made.up->outputs;
        require(convolves ? odd(*made.up, d) && odd(*made.down, inner)
                          : made.up->inputs == d && made.down->inputs == inner,
                "a layer lacks a part");
        made.gate = linear(from, "gate", inner, d);
        made.norm = norm(layer, (name + "_norm").c_str());
        made.inner = norm(from, "norm", inner);
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
        const int d = width;
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

    // reads: its features where they are others than those that it gives.
    Layer layer(const py::dict& from, bool decodes, bool convolves = false, int reads = 0) {
        if (from.contains("fed")) return fed_layer(from);
        Layer made;
        const int d = this->width, in = reads ? reads : d;
        const py::dict cross = part(from, "cross_attention"), merge = part(from, "merge");
        const bool recurs = decodes && from.contains("recurrence");
        const py::dict attention = recurs ? cross : part(from, "self_attention");
        made.norm_first = from["norm_first"].cast<bool>();
        made.heads = attention["heads"].cast<int>();
        made.features = attention["features"].cast<int>();
        require(made.heads > 0 && made.features > 0 && made.features % LANES == 0,
                "a head's features are a multiple of 16");
        made.scale = attention["scale"].cast<float>();
        const int width = made.width();
        if (recurs) {
            made.recurrence = linear(part(from, "recurrence"), "project", 2 * d, d);
        } else {
            made.qkv = linear(attention, "qkv", 3 * width, in);
            made.out = linear(attention, "out", d, width);
            if (attention.contains("memory")) made.memory = depthwise(attention, "memory", d);
            require(!made.memory.taps || d % made.heads == 0, "memory of other features than the heads'");
        }
        made.cross_q = linear(cross, "q", width, d);
        made.cross_kv = linear(cross, "kv", 2 * width, source);
        made.cross_out = linear(cross, "out", d, width);
        require(made.recurrence || (made.qkv && made.out), "a layer lacks a part");
        const bool sees = made.cross_q && made.cross_kv && made.cross_out;
        require(sees || !(decodes || made.cross_q), "a layer does not see the source");
        made.self_norm = norm(from, "self_norm", in);
        made.cross_norm = norm(from, "cross_norm");
        if (from.contains("ffn")) {
            made.ffn = feed_forward(from, "ffn", convolves);
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

    // A layer of SAN-M's decoder: its network comes first, and it may lack all else.
    Layer fed_layer(const py::dict& from) {
        Layer made;
        const py::dict cross = part(from, "cross_attention");
        made.fed = true;
        made.ffn = feed_forward(from, "ffn");
        made.self_norm = norm(from, "self_norm");
        if (from.contains("memory")) made.memory = depthwise(from, "memory", width);
        require(made.ffn.norm.gain && (!made.memory.taps || made.self_norm.gain), "a layer lacks a norm");
        if (!from.contains("cross_attention")) return made;
        made.heads = cross["heads"].cast<int>();
        made.features = cross["features"].cast<int>();
        require(made.heads > 0 && made.features > 0 && made.features % LANES == 0,
                "a head's features are a multiple of 16");
        made.scale = cross["scale"].cast<float>();
        made.cross_q = linear(cross, "q", made.width(), width);
        made.cross_kv = linear(cross, "kv", 2 * made.width(), network->features);
        made.cross_out = linear(cross, "out", width, made.width());
        made.cross_norm = norm(from, "cross_norm");
        require(made.cross_q && made.cross_kv && made.cross_out, "a layer does not see the source");
        return made;
    }

    Stack stack(const py::dict& from, int features, bool decodes) {
        Stack made;
        width = made.features = made.embedding.features = features;
        const py::dict embedding = part(from, "embedding");
        made.embedding.words = linear(embedding, "words");
        require(made.embedding.words ? made.embedding.words->inputs == features : !decodes || from.contains("prenet"),
                "words of another size");
        made.embedding.scale = embedding["scale"].cast<float>();
        made.embedding.count = embedding["count"].cast<int>();
        if (embedding.contains("features")) made.embedding.features = embedding["features"].cast<int>();
        const int read = made.embedding.features;
        require(read > 0, "a first layer that reads something");
        if (embedding.contains("positions"))
            made.embedding.positions = floats(embedding["positions"], (py::ssize_t)made.embedding.count * read);
        made.embedding.norm = norm(embedding, "norm");
        for (const auto& each : from["layers"].cast<py::list>())
            made.layers.push_back(layer(each.cast<py::dict>(), decodes, false, made.layers.empty() ? read : 0));
        require(read == features || !made.layers.empty(), "no layer reads what enters");
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
        if (from.contains("window")) {
            const py::dict stacking = part(encoder, "stacking");
            made.features = from["features"].cast<int>();
            made.window = from["window"].cast<int>();
            made.shift = from["shift"].cast<int>();
            made.scale = from["scale"].cast<float>();
            const int inputs = made.window * made.features;
            require(made.window > 0 && made.shift > 0 && made.features > 0 &&
                        inputs == network->encoder.embedding.features,
                    "a first layer that reads frames side by side");
            made.offset = floats(stacking["offset"], inputs);
            made.factor = floats(stacking["factor"], inputs);
            return made;
        }
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
        const int d = network->features, decoded = network->decoder.embedding.features;
        made.copied = named(COPIES, from["copied"].cast<std::string>());
        if (from.contains("frames")) made.frames = from["frames"].cast<int>();
        if (from.contains("temperature")) made.temperature = from["temperature"].cast<float>();
        made.lengths = linear(from, "lengths");
        require(made.copied == Copied::none || d == decoded, "a decoder of other features than what it copies");
        require(!made.lengths || made.lengths->inputs == d, "a length predictor of another size");
        const py::dict cif = part(from, "cif"), links = part(from, "links");
        made.fire_out = linear(cif, "out", 1, d);
        if (made.fire_out) {
            made.tail = cif["tail"].cast<double>();
            made.least = cif["least"].cast<int>();
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
            made.positions = floats(links["positions"], (py::ssize_t)network->most_target * decoded);
        const int inputs = decoded * ((int)made.by_features + (made.positions != nullptr));
        made.query = linear(links, "query", decoded, inputs);
        made.key = linear(links, "key", decoded, inputs);
        made.gate = linear(links, "gate");
        require(made.key && made.gate && made.gate->inputs == inputs && decoded % made.gate->outputs == 0,
                "links lack a part, or have one of another size");
        return made;
    }

    Predictor predictor(const py::dict& from) {
        Predictor made;
        int channels = width;
        const auto convolutions = from["conv"].cast<py::list>(), norms = from["norm"].cast<py::list>();
        require(convolutions.size() == norms.size(), "a norm for each convolution");
        for (size_t i = 0; i < convolutions.size(); i++) {
            const py::dict each(py::arg("taps") = convolutions[i], py::arg("norm") = norms[i]);
            made.convolutions.push_back(linear(each, "taps"));
            require(odd(*made.convolutions.back(), channels), "a convolution of another size");
            channels = made.convolutions.back()->outputs;
            made.norms.push_back(norm(each, "norm", channels));
        }
        made.out = linear(from, "out", 1, channels);
        require(made.out, "a predictor lacks a part");
        return made;
    }

    Acoustic acoustic(const py::dict& from) {
        Acoustic made;
        const int d = width = made.features = from["features"].cast<int>();
        const auto table = from["positions"].cast<py::array>();
        made.positions = (int)table.shape(0);
        made.most = from["most"].cast<int>();
        made.table = floats(table, (py::ssize_t)made.positions * d);
        require(made.most <= made.positions, "a position for each frame");
        made.encoder_factor = *floats(from["encoder_positions"], 1);
        made.decoder_factor = *floats(from["decoder_positions"], 1);
        for (const auto& each : from["encoder"].cast<py::list>())
            made.encoder.push_back(layer(each.cast<py::dict>(), false, true));
        for (const auto& each : from["decoder"].cast<py::list>())
            made.decoder.push_back(layer(each.cast<py::dict>(), false, true));
        const py::dict variance = part(from, "variance"), statistics = part(from, "statistics");
        made.duration = predictor(part(variance, "duration"));
        made.pitch = predictor(part(variance, "pitch"));
        made.energy = predictor(part(variance, "energy"));
        made.bounds = (int)statistics["pitch_bounds"].cast<py::array>().size();
        made.pitch_bounds = floats(statistics["pitch_bounds"], made.bounds);
        made.energy_bounds = floats(statistics["energy_bounds"], made.bounds);
        made.pitch_vectors = floats(variance["pitch_embedding"], (made.bounds + (py::ssize_t)1) * d);
        made.energy_vectors = floats(variance["energy_embedding"], (made.bounds + (py::ssize_t)1) * d);
        made.out = linear(from, "out");
        require(made.out && made.out->inputs == d, "frames of another size");
        made.mean = floats(statistics["mel_mean"], made.out->outputs);
        made.deviation = floats(statistics["mel_deviation"], made.out->outputs);
        return made;
    }

    // Of a decoder that speaks.
    Steps steps(const py::dict& from) {
        Steps made;
        const py::dict prenet = part(from, "prenet"), statistics = part(from, "statistics");
        made.out = linear(from, "out");
        made.most = from["most"].cast<int>();
        made.bins = (int)statistics["mel_mean"].cast<py::array>().size();
        made.mean = floats(statistics["mel_mean"], made.bins);
        made.deviation = floats(statistics["mel_deviation"], made.bins);
        for (const auto& each : prenet["layers"].cast<py::list>())
            made.prenet.push_back(linear(py::dict(py::arg("layer") = each), "layer"));
        made.prenet.push_back(linear(prenet, "out"));
        require(made.out && made.out->inputs == width && made.bins > 0 && made.size() % made.bins == 0 &&
                    made.size() > 0 && made.most <= network->decoder.embedding.count * (made.size() / made.bins),
                "frames of another size");
        int inputs = made.size();
        for (const Linear* each : made.prenet) {
            require(each && each->inputs == inputs, "a prenet of another size");
            inputs = each->outputs;
        }
        require(inputs == width, "a prenet of another size");
        return made;
    }

    explicit Builder(const py::dict& from) {
        network->features = from["features"].cast<int>();
        const int d = network->features;
        if (from.contains("acoustic")) network->acoustic = acoustic(part(from, "acoustic"));
        const py::dict adaptor = part(from, "adaptor");
        network->acoustic.up = linear(adaptor, "up");
        network->acoustic.down = linear(adaptor, "down");
        require(!network->acoustic.up || (network->acoustic.down &&
                                          network->acoustic.down->inputs == network->acoustic.up->outputs &&
                                          network->acoustic.down->outputs == network->acoustic.features),
                "an adaptor of another size");
        network->ctc = linear(from, "ctc");
        require(!network->ctc || network->ctc->inputs == d, "a CTC head of another size");
        if (network->ctc) network->condition = linear(from, "condition", d, network->ctc->outputs);
        if (network->condition) network->condition_normed = from["condition_normed"].cast<bool>();
        const py::dict encoder = part(from, "encoder"), output = part(from, "output");
        const py::dict prompt = part(encoder, "prompt");
        source = encoder.contains("prompt") ? prompt["features"].cast<int>() : d;
        network->reads_vectors = encoder.contains("vectors");
        if (network->reads_vectors) {
            network->encoder.features = network->encoder.embedding.features = d;
            network->encoder.embedding.count = encoder["vectors"].cast<int>();
        } else {
            network->encoder = stack(encoder, d, false);
        }
        if (encoder.contains("prompt")) network->prompt = stack(prompt, source, false);
        network->front = linear(prompt, "front", d, source);
        require(network->front || source == d, "words in front of frames of other features");
        source = d;
        const int decoded = from.contains("decoder") ? from["decoder_features"].cast<int>() : d;
        if (from.contains("decoder")) network->decoder = stack(part(from, "decoder"), decoded, true);
        if (part(from, "decoder").contains("prenet")) network->steps = steps(part(from, "decoder"));
        network->output = from.contains("output") ? linear(output, "words") : network->ctc;
        require(network->output ? network->output->inputs == decoded : network->spoken_bins() > 0,
                "an output layer of another size");
        if (from.contains("output")) network->output_scale = output["scale"].cast<float>();
        if (output.contains("bias") && !output["bias"].is_none()) {
            network->biased = *network->output;
            network->biased.bias = floats(output["bias"], network->output->width());
            network->output = &network->biased;
        }
        network->words = network->output ? network->output->outputs : 0;
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

}  // namespace

void bind_model(py::module_& m) {
    py::class_<Layered, std::shared_ptr<Layered>>(m, "Linear")
        .def_static("pack", &pack, py::arg("weights"), py::arg("bias"), py::arg("type"),
                    py::arg("scales") = py::none())
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

    py::class_<Model, std::shared_ptr<Model>>(m, "Model").def(py::init([](const py::dict& parts) {
        Builder built(parts);
        return Model{built.network, std::move(built.keep)};
    })).def("view", [](const Model& from, const std::vector<std::array<bool, 3>>& layers) {
        return Model{from.network->view(layers), from.keep};
    });
}

}  // namespace nartk
