// An engine as Python holds it, what it is asked to read, and what it gave.
#pragma once
#include <chrono>
#include <cmath>

#include "bindings.h"

namespace nartk {

constexpr auto PATIENCE = std::chrono::milliseconds(50);  // between looks for an interrupt

// An engine, and the model that it needs.
struct Runner {
    std::shared_ptr<Model> model;
    std::shared_ptr<Runner> of;  // whose encoded sources it reads; null: it has its own
    Engine engine;

    Runner(std::shared_ptr<Model> model, const std::string& isa, int threads, std::shared_ptr<Runner> of)
        : model(model), of(of), engine(model->network, &kernels_of(isa), threads, of ? &of->engine : nullptr) {
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

// What a pass gave; dropped without `commit`, nothing of it is kept.
struct Scores {
    std::shared_ptr<Runner> runner;
    std::shared_ptr<Pending> pending;
    const Linear* head;
    std::vector<float> features;
    std::vector<int> word_offsets, listed;  // of each scored token; none: all words
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
        const int d = head->inputs, words = head->outputs;
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
        for (py::ssize_t i = 0; i < count && !word_offsets.empty(); i++) {
            const int at = index.data()[i], begin = word_offsets[at], end = word_offsets[at + 1];
            if (begin == end) continue;
            float* row = to + i * words;
            for (int v = 0, j = begin; v < words; v++)
                if (j < end && listed[j] == v)
                    j++;
                else
                    row[v] = -INFINITY;
        }
        return made;
    }
};

// A nartk.protocols.passes.Want of n tokens, of a model of `all` words; checked, with the arrays that it points into.
struct Wanted {
    Want want;
    bool hidden;
    std::optional<Ints> ban_offsets, banned, word_offsets, listed, given;
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
        if (const py::object lists = from.attr("words"); !lists.is_none()) {
            word_offsets = column<Ints>(lists.attr("offsets"), "words.offsets", scored + 1);
            listed = column<Ints>(lists.attr("values"), "words.values", -1);
            const int *offsets = word_offsets->data(), *values = listed->data();
            if (offsets[0] != 0 || offsets[scored] != listed->size())
                throw PassFault("lists of words begin at 0 and end with the last");
            for (py::ssize_t i = 0; i < scored; i++) {
                if (offsets[i] > offsets[i + 1]) throw PassFault("lists of words ascend");
                for (int j = offsets[i]; j < offsets[i + 1]; j++)
                    if (values[j] < 0 || values[j] >= all || (j > offsets[i] && values[j] <= values[j - 1]))
                        throw PassFault("a list of words is not ascending ones of the model's");
            }
            want.word_offsets = offsets;
            want.words = values;
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
        if (hidden) made->hidden = matrix(read.hidden, made->head->inputs);
        made->features = std::move(read.hidden);
        if (want.words) {
            made->word_offsets.assign(want.word_offsets, want.word_offsets + want.only.size() + 1);
            made->listed.assign(want.words, want.words + listed->size());
        }
        return made;
    }
};

}  // namespace nartk
