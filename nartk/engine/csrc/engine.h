// A model's encoder and its pass, each one call.
//
// Symbols: n tokens, S source positions, d features of the model, H heads of f features (a multiple of 16).
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "cells.h"
#include "kernels.h"
#include "threads.h"

namespace nartk {

constexpr int CHUNK = 128;    // tokens that go through all layers together, so that they stay near
constexpr double PART = 2e5;  // multiplications that are worth another thread

struct Norm {
    const float* gain = nullptr;  // null: there is no norm here
    const float* bias = nullptr;  // null: RMSNorm
    float eps = 1e-5f;
};

struct Embedding {
    const Linear* words = nullptr;  // its rows are the words' vectors
    float scale = 1.0f;
    const float* positions = nullptr;  // [count,d]; null: none
    int count = 0;
    Norm norm;
};

struct Layer {
    bool norm_first = true;
    int heads = 1, features = 16;
    float scale = 1.0f;  // of attention scores
    const Linear *qkv = nullptr, *out = nullptr;
    const Linear *cross_q = nullptr, *cross_kv = nullptr, *cross_out = nullptr;
    const Linear *up = nullptr, *gate = nullptr, *down = nullptr;
    Activation activation = Activation::relu;
    Norm self_norm, cross_norm, ffn_norm;
    int width() const { return heads * features; }
};

struct Stack {
    Embedding embedding;
    std::vector<Layer> layers;
    Norm norm;
    // What is added to a head's scores by the key's position less the query's, which stops at `farthest` either way:
    // [H,2*farthest+1]; null: nothing.
    const float* relative = nullptr;
    int farthest = 0;
};

// What a non-autoregressive network has beside its layers.
enum class Copied { none, uniform, soft, source, memory };  // what stands at places without a word
struct Parallel {
    Copied copied = Copied::none;
    int frames = 1;                   // source, memory: places of each source token
    float temperature = 1.0f;         // soft: source positions at which weights fall by e
    const Linear* lengths = nullptr;  // logits of the output's length
    // Links of a graph's vertices, by their features, by learned positions, or by both.
    bool by_features = false;
    const float* positions = nullptr;  // [most_target,d]
    int longest_link = 0;              // vertices that a link leads ahead, at most
    const Linear *query = nullptr, *key = nullptr, *gate = nullptr;
};

struct Network {
    int features = 0;  // d
    Stack encoder, decoder;
    const Linear* output = nullptr;
    Linear biased;              // the output where its words are another's, but its bias is its own
    float output_scale = 1.0f;  // of what the output layer reads
    int source_words = 0, words = 0;
    int most_source = 0, most_target = 0;  // positions
    Parallel parallel;
    // Of the layers of a stack, the floats of keys and values of a token.
    size_t kv_floats(const Stack& stack) const;
};

// A block of floats that only grows.
class Buffer {
  public:
    ~Buffer() { release(data); }
    float* get(size_t count);

  private:
    float* data = nullptr;
    size_t size = 0;
};

struct Workspace {
    Buffer x, normed, projected, attended, inner, gated, logits, weights, quantised, scales, biases;
};

struct Memory {
    int length = 0;
    std::vector<int> tokens;         // [S]
    std::vector<float> output;       // [S,d]
    Buffer kv;                       // [S, of all layers]
    std::vector<const float*> rows;  // [S]
};

// What is read after a token beside the best word.
struct Drawing {
    const double* uniforms = nullptr;
    double temperature = 1.0, top_p = 1.0;
    int top_k = 0;
};

struct Want {
    std::vector<int> only;  // the scored tokens
    const int* ban_offsets = nullptr;
    const int* banned = nullptr;
    int top = 0;
    bool margin = false;
    const int* given = nullptr;
    Drawing draw;
};

struct Read {
    std::vector<int> best, top, drawn;
    std::vector<float> log_probs, top_log_probs, margins, given_log_probs, drawn_log_probs;
    std::vector<float> hidden;  // [n,d]
};

// Where the row of each of n tokens begins, and how many tokens it has.
struct Rows {
    std::vector<int> begin, size;
    int longest = 0;
    Rows(const int* lengths, int count);
};

constexpr int COPIED = -1;  // in place of a word: what the network copies from the source

// Places of rows, row after row, those of a row from position 0 on; they see one another.
struct Canvas {
    int rows;
    const int *memories, *lengths;  // [rows]
    const int* words;               // [N], or COPIED
};

class Engine {
  public:
    Engine(std::shared_ptr<const Network> network, const Kernels* kernels, int threads);
    ~Engine();

    std::vector<int> encode(const int* tokens, const int* lengths, int count);
    void free(const int* memories, int count);
    struct Tokens {
        int count;
        const int *words, *positions, *memories, *contexts, *parents;
    };
    std::shared_ptr<Pending> run(const Tokens& tokens, const Want& want, Read& read);
    // A canvas in one pass: what the output layer reads at the places `only`, [n,d].
    void fill(const Canvas& canvas, const std::vector<int>& only, std::vector<float>& hidden);
    // Reads words at found.hidden [n,d], for want.only of n.
    void read(const Want& want, Read& found);
    // Logits [count,C] of lengths of the outputs of encoded sources.
    void length_logits(const int* memories, int count, float* to);
    // Log-probabilities of the next vertex, [L,L] of each graph: hidden [N,d] of graphs of L vertices.
    void links(const float* hidden, const int* lengths, int count, float* to);
    // Logits [m,V] of hidden features [m,d].
    void logits(const float* hidden, int count, float* to);
    std::shared_ptr<const Memory> memory(int handle);
    size_t memories_in_use();

    Cells cells;
    const std::shared_ptr<const Network> network;
    const Kernels* const kernels;
    Threads threads;
    std::function<void()> interrupted;  // called between layers; throws to break off

  private:
    // A workspace for as long as a call takes.
    struct Forks;
    struct Lease {
        Engine& engine;
        std::unique_ptr<Workspace> space;
        explicit Lease(Engine& engine);
        ~Lease();
    };
    void linear(Workspace& space, const Linear& w, const float* x, int n, int ldx, float* y, int ldy,
                Epilogue epilogue = {});
    void embed(const Embedding& embedding, const int* words, const int* positions, int n, float* x);
    void vector(const Embedding& embedding, int word, float* x);
    void place(const Embedding& embedding, const int* positions, int n, float* x);  // adds positions to vectors
    void copy_source(Workspace& space, const Memory& source, const int* words, int places, float* x);
    void normed(const Norm& norm, const float* x, int n, float* y);
    void finish(float* row, float* to);  // what the output layer reads, [d]
    const float* biases(Workspace& space, const Stack& stack, int longest);
    template <class Inner>
    void sublayer(Workspace& space, const Norm& norm, bool first, float* x, int n, Inner inner);
    template <class Kept, class Over>
    void attention(Workspace& space, const Layer& layer, const Norm& norm, const Linear& in, const Linear& out,
                   float* x, int n, int longest, const float* biases, Kept kept, Over over);
    void attend_rows(Workspace& space, const Layer& layer, float* x, int n, const Rows& rows,
                     const float* biases = nullptr);
    void attend_sources(Workspace& space, const Layer& layer, float* x, int n, int offset,
                        const std::shared_ptr<const Memory>* sources);
    void feed_forward(Workspace& space, const Layer& layer, float* x, int n);
    void link_row(Workspace& space, const float* hidden, int count, float* to);
    void read(Workspace& space, const Want& want, Read& read);
    void read_row(const float* row, int index, const Want& want, Read& read, std::vector<float>& copy);
    int stride() const;  // floats of a token's features in a buffer

    std::mutex mutex;  // of memories and spaces
    std::unordered_map<int, std::shared_ptr<const Memory>> memories;
    int next_memory = 0;
    std::vector<std::unique_ptr<Workspace>> spaces;
};

}  // namespace nartk
