// The engine as Python sees it. Arguments are checked here and below; the lock of Python is given up while
// the engine computes.
#include "runner.h"

using namespace nartk;

namespace {

// A method of an engine that takes handles.
template <class Body>
auto of_handles(Body body) {
    return [body](Runner& runner, const py::object& from) {
        const Ints handles = ints(from);
        return body(runner.engine, handles.data(), (int)handles.size());
    };
}

std::shared_ptr<Scores> run_watched(std::shared_ptr<Runner> runner, py::object words_given, py::object positions_given,
                                    py::object memories_given, py::object contexts_given, py::object parents_given,
                                    const py::object& want, const Watched* watched) {
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
            read, watched);
    });
}

std::shared_ptr<Scores> run(std::shared_ptr<Runner> runner, py::object words, py::object positions,
                            py::object memories, py::object contexts, py::object parents, const py::object& want) {
    return run_watched(runner, words, positions, memories, contexts, parents, want, nullptr);
}

// The same over one source, with the weights of cross-attention of heads, pairs of a layer and a head of it: [H,N,S].
py::tuple run_attending(std::shared_ptr<Runner> runner, py::object words, py::object positions, py::object memories,
                        py::object contexts, py::object parents, const py::object& want,
                        const std::vector<std::pair<int, int>>& heads) {
    Engine& engine = runner->engine;
    const Ints tokens = ints(words), sources = ints(memories);
    if (tokens.size() < 1 || sources.size() < 1) throw PassFault("a pass has no token");
    Watched watched;
    for (const Layer& layer : engine.network->decoder.layers)
        watched.rows.emplace_back(layer.skips_source ? 0 : layer.heads, -1);
    for (const auto& [layer, head] : heads) {
        if (layer < 0 || layer >= (int)watched.rows.size() || head < 0 || head >= (int)watched.rows[layer].size())
            throw PassFault("the decoder has no head " + number(head) + " in layer " + number(layer));
        if (watched.rows[layer][head] >= 0)
            throw PassFault("head " + number(head) + " of layer " + number(layer) + " is named twice");
        watched.rows[layer][head] = watched.heads++;
    }
    watched.tokens = (int)tokens.size();
    watched.positions = engine.memory(sources.data()[0])->length;
    Floats weights({(py::ssize_t)watched.heads, tokens.size(), (py::ssize_t)watched.positions});
    watched.weights = weights.mutable_data();
    return py::make_tuple(run_watched(runner, words, positions, memories, contexts, parents, want, &watched), weights);
}

// Drafts of rows, flat: the number of words of each, their ids and log-probabilities, and passes of each row.
py::tuple draft(Runner& runner, const py::object& memories_given, const py::object& contexts_given,
                const py::object& most_given, const py::object& offsets_given, const py::object& tokens_given,
                const py::object& ends_given, double least, float least_likely, const py::object& words_given) {
    const Ints memories = ints(memories_given), contexts = ints(contexts_given), most = ints(most_given),
               offsets = ints(offsets_given), tokens = ints(tokens_given), ends = ints(ends_given),
               words = ints(words_given);
    const py::ssize_t count = contexts.size();
    if (memories.size() != count || most.size() != count || offsets.size() != count + 1)
        throw PassFault("the arrays of drafts differ in length");
    const auto ascend = [&](py::ssize_t b) { return offsets.data()[b] <= offsets.data()[b + 1]; };
    for (py::ssize_t b = 0; b <= count; b++)
        if (offsets.data()[b] < 0 || offsets.data()[b] > tokens.size() || (b < count && !ascend(b)))
            throw PassFault("what rows read is not one behind the other");
    for (py::ssize_t i = 0; i < words.size(); i++)
        if (words.data()[i] < 0 || words.data()[i] >= runner.engine.network->words ||
            (i && words.data()[i] <= words.data()[i - 1]))
            throw PassFault("a list of words is not ascending ones of the model's");
    std::vector<Chain> made;
    {
        py::gil_scoped_release release;
        made = runner.engine.draft(
            {(int)count, memories.data(), contexts.data(), most.data(), offsets.data(), tokens.data()},
            {ends.data(), (int)ends.size(), least, least_likely, words.data(), (int)words.size()});
    }
    std::vector<int> sizes, drafted, passes;
    std::vector<float> log_probs;
    for (const Chain& each : made) {
        sizes.push_back((int)each.words.size());
        passes.push_back(each.passes);
        drafted.insert(drafted.end(), each.words.begin(), each.words.end());
        log_probs.insert(log_probs.end(), each.log_probs.begin(), each.log_probs.end());
    }
    return py::make_tuple(sizes, drafted, log_probs, passes);
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
    if (!runner->engine.network->output) throw PassFault("the model has no output layer");
    const int d = runner->engine.network->output->inputs;
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
    return py::make_tuple(matrix(hidden, runner.engine.network->output->inputs), links);
}

// Spectrograms of sentences of so many phonemes, and their prosody where it is predicted.
py::dict speak(Runner& runner, const Floats& features, const py::object& of_each) {
    const Network& network = *runner.engine.network;
    const Ints lengths = ints(of_each);
    py::ssize_t total = 0;
    for (py::ssize_t i = 0; i < lengths.size(); i++) total += std::max(0, lengths.data()[i]);
    if (features.ndim() != 2 || features.shape(1) != network.spoken_features() || features.shape(0) != total)
        throw PassFault("vectors of phonemes of another size");
    Spoken spoken;
    {
        py::gil_scoped_release release;
        runner.engine.speak(features.data(), lengths.data(), (int)lengths.size(), spoken);
    }
    py::dict found;
    found["mel"] = matrix(spoken.mel, network.spoken_bins());
    found["frames"] = array(spoken.frames);
    found["durations"] = array(spoken.durations);
    found["log_durations"] = array(spoken.log_durations);
    found["pitch"] = array(spoken.pitch);
    found["energy"] = array(spoken.energy);
    return found;
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

// Sources that another model has encoded, vectors [N,d] of all of them.
py::array_t<int32_t> encode_vectors(Runner& runner, const Floats& vectors, const py::object& of_each) {
    const Ints lengths = ints(of_each);
    py::ssize_t total = 0;
    for (py::ssize_t i = 0; i < lengths.size(); i++) total += std::max(0, lengths.data()[i]);
    if (vectors.ndim() != 2 || vectors.shape(1) != runner.engine.network->features || vectors.shape(0) != total)
        throw PassFault("vectors of other sources than are said");
    std::vector<int> made;
    {
        py::gil_scoped_release release;
        made = runner.engine.encode_vectors(vectors.data(), lengths.data(), (int)lengths.size());
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
    m.def("cores", &Threads::available);
    bind_model(m);
    bind_vocoder(m);

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
        .def(py::init<std::shared_ptr<Model>, const std::string&, int, std::shared_ptr<Runner>>(), py::arg("model"),
             py::arg("isa"), py::arg("threads"), py::arg("of") = nullptr)
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
        .def("encode_vectors", &encode_vectors)
        .def("fires", of_handles([](Engine& e, const int* memories, int count) {
                 Ints made(count);
                 for (int i = 0; i < count; i++) made.mutable_data()[i] = e.memory(memories[i])->fires;
                 return made;
             }))
        .def("fire_weights", [](Runner& r, int memory) { return array(r.engine.memory(memory)->fire_weights); })
        .def("read_encoded", &read_encoded)
        .def("length_logits", &length_logits)
        .def("graph", &graph)
        .def("speak", &speak, py::arg("features"), py::arg("lengths"))
        .def("fill", &fill, py::arg("memories"), py::arg("lengths"), py::arg("words"), py::arg("want"),
             py::arg("fired") = py::none())
        .def("words", &words_at, py::arg("features"), py::arg("want"))
        .def("run", &run, py::arg("words"), py::arg("positions"), py::arg("memories"), py::arg("contexts"),
             py::arg("parents"), py::arg("want"))
        .def("draft", &draft, py::arg("memories"), py::arg("contexts"), py::arg("most"), py::arg("offsets"),
             py::arg("tokens"), py::arg("ends"), py::arg("least"), py::arg("least_likely"), py::arg("words"))
        .def("run_attending", &run_attending, py::arg("words"), py::arg("positions"), py::arg("memories"),
             py::arg("contexts"), py::arg("parents"), py::arg("want"), py::arg("heads"));
}
