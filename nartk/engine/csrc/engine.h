// A model's encoder and its pass, each one call.
//
// Symbols: n tokens, S source positions, d features of the model, H heads of f features (a multiple of 16).
#pragma once
#include <array>
#include <deque>
#include <list>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "cells.h"
#include "kernels.h"
#include "threads.h"
#include "weights.h"

namespace nartk {

constexpr int CHUNK = 128;    // tokens that go through all layers together, so that they stay near
constexpr int BLOCK = 120;    // tokens of a linear layer that stay near, a multiple of what kernels take at once
constexpr double PART = 2e5;  // multiplications that are worth another thread

// Floats of a token's features in a buffer.
inline int step_of(int features) { return rounded(features, PANEL); }

struct Norm {
    int features = 0;             // of what is read, also where there is no norm
    const float* gain = nullptr;  // null: there is no norm here
    const float* bias = nullptr;  // null: RMSNorm
    float eps = 1e-5f;
};

struct Embedding {
    int features = 0;               // d
    const Linear* words = nullptr;  // its rows are the words' vectors
    float scale = 1.0f;
    const float* positions = nullptr;  // [count,d]; null: none
    int count = 0;
    Norm norm;
};

struct FeedForward {
    const Linear *up = nullptr, *gate = nullptr, *down = nullptr;
    Activation activation = Activation::relu;
    Norm norm, inner;  // inner: of what `down` reads
};

// A convolution of each channel by itself over neighbouring positions, as many of which are before as after.
struct Depthwise {
    const float *taps = nullptr, *bias = nullptr;  // [size,channels], channels filled up to 16
    int size = 0, channels = 0;
};

// What mixes neighbouring positions: the first half of what `up` gives, and a second one that is its gate. A
// Conformer's convolution is of the gated half; that of E-Branchformer's cgMLP of the gate.
struct Gating {
    bool of_gate = false;
    const Linear *up = nullptr, *down = nullptr;
    Depthwise depthwise;
    Norm norm, inner;
};

struct Layer {
    bool norm_first = true;
    int heads = 1, features = 16;
    float scale = 1.0f;  // of attention scores
    const Linear *qkv = nullptr, *out = nullptr;
    const Linear* recurrence = nullptr;  // in place of self-attention: [candidates, logits of the forget gate]
    // SAN-M (Gao et al. 2020, https://arxiv.org/abs/2006.01713): what is added to self-attention's output, of its
    // values and their neighbours. Layers of the decoder that are `fed` have it in place of self-attention, behind
    // their feed-forward network, or have that alone.
    Depthwise memory;
    bool fed = false;
    const Linear *cross_q = nullptr, *cross_kv = nullptr, *cross_out = nullptr;
    Norm self_norm, cross_norm;
    FeedForward ffn;
    // What layers of speech have beside a Transformer's. Without `merge_out` `gating` follows attention; with it both
    // read the same, and what they give is merged.
    FeedForward ffn_before;
    const Linear* distances = nullptr;                    // of relative positions of Transformer-XL
    const float *content = nullptr, *position = nullptr;  // [H,f], added to queries there
    Gating gating;
    Depthwise merge;
    const Linear* merge_out = nullptr;
    Norm final_norm;
    bool conditioned = false;  // reads afterwards what the CTC head predicts
    // Sublayers of the decoder that a view leaves out: their norms stay where these follow them.
    bool skips_self = false, skips_source = false, skips_ffn = false;
    int width() const { return heads * features; }
    int cell_floats() const {
        if (skips_self) return 0;
        return recurrence ? rounded(recurrence->inputs, LANES) : 2 * width();
    }
};

struct Stack {
    Embedding embedding;  // its features are those that the first layer reads
    int features = 0;     // that the layers give
    std::vector<Layer> layers;
    Norm norm;
    // What is added to a head's scores by the key's position less the query's, which stops at `farthest` either way:
    // [H,2*farthest+1]; null: nothing.
    const float* relative = nullptr;
    int farthest = 0;
};

// How frames become positions: convolutions over 3 frames, of `images` over 3 features as well. Images have no
// padding; else a frame of zeros is on both sides.
struct Subsampling {
    struct Convolution {
        const Linear* taps;  // inputs: [3 frames,3 features or none,channels]
        int stride;
    };
    std::vector<Convolution> convolutions;
    // Or frames that lie side by side, `window` of them around each `shift`-th, those at the ends repeated: plus
    // `offset`, times `factor` and `scale`.
    int window = 0, shift = 1;
    const float *offset = nullptr, *factor = nullptr;  // [window,features]
    float scale = 1.0f;
    Activation activation = Activation::relu;
    bool images = false;
    int features = 0;             // of a frame
    const Linear* out = nullptr;  // inputs: [features,channels]; null: the channels are a position's features
    int after(int level, int frames) const;  // positions behind that convolution of so many before it
    int positions(int frames) const;
    int least() const;  // frames of the shortest source that has a position
};

// What a non-autoregressive network has beside its layers.
enum class Copied { none, uniform, soft, source, memory, fires };  // what stands at places without a word
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
    // Continuous integrate-and-fire: positions' weights by a convolution over 3 of them, padded with zeros, or by one
    // of each feature by itself, which is added to what it reads.
    const Linear *fire_taps = nullptr, *fire_out = nullptr;
    Depthwise fire_depthwise;
    double tail = 0.0;  // what is added to a source's weights
    int least = 1;      // fires that a source has
};

// Predicts a number for each phoneme: convolutions, each with ReLU and a norm behind it.
struct Predictor {
    std::vector<const Linear*> convolutions;
    std::vector<Norm> norms;
    const Linear* out = nullptr;
};

// What makes spectrograms of vectors of phonemes, which may be those of a graph's vertices.
struct Acoustic {
    int features = 0, positions = 0, most = 0;  // most: frames of an output
    const float* table = nullptr;               // [positions,d], sinusoids
    float encoder_factor = 1.0f, decoder_factor = 1.0f;  // of positions
    std::vector<Layer> encoder, decoder;  // over phonemes, over frames; their feed-forward networks are convolutions
    Predictor duration, pitch, energy;
    int bounds = 0;  // between bins
    const float *pitch_bounds = nullptr, *energy_bounds = nullptr;
    const float *pitch_vectors = nullptr, *energy_vectors = nullptr;  // [bounds+1,d]
    const Linear* out = nullptr;
    const float *mean = nullptr, *deviation = nullptr;  // of the corpus's frames, which training divided out
    // Between what is read and vectors of phonemes, ReLU between them; null: these are read.
    const Linear *up = nullptr, *down = nullptr;
    int inputs() const { return up ? up->inputs : features; }
};

// What makes spectrograms step by step: the decoder, which reads the frames of the step before through a prenet.
struct Steps {
    std::vector<const Linear*> prenet;  // with ReLU between them
    const Linear* out = nullptr;        // frames of a step, and a number that is above 0 if it is the last one
    int bins = 0, most = 0;             // most: frames of an output
    const float *mean = nullptr, *deviation = nullptr;  // of the corpus's frames
    int size() const { return out->outputs - 1; }       // numbers in the frames of a step
};

struct Network {
    int features = 0;  // d, of the encoder; the decoder's may be others
    Stack encoder, decoder;
    Stack prompt;                       // encodes words beside frames, which layers of the encoder with `cross_q` read
    const Linear* front = nullptr;      // of a word's features, what is in front of frames; null: they are that
    Subsampling subsampling;            // of sources of frames
    const Linear* ctc = nullptr;        // words that positions of the encoder say
    const Linear* condition = nullptr;  // of their probabilities, what `conditioned` layers add
    bool condition_normed = true;       // those words are read behind the encoder's last norm there too
    const Linear* output = nullptr;
    Linear biased;              // the output where its words are another's, but its bias is its own
    float output_scale = 1.0f;  // of what the output layer reads
    int source_words = 0, words = 0;
    int most_source = 0, most_target = 0;  // positions, of sources of frames frames
    bool reads_vectors = false;            // its sources are encoded already
    bool hears() const { return subsampling.window || !subsampling.convolutions.empty(); }
    Parallel parallel;
    Acoustic acoustic;
    Steps steps;
    // Features of a phoneme that is spoken, and bins of a frame; 0 where nothing speaks.
    int spoken_features() const { return steps.out ? features : acoustic.inputs(); }
    int spoken_bins() const { return steps.out ? steps.bins : acoustic.out ? acoustic.out->outputs : 0; }
    // Of the layers of a stack, the floats that a token's cell has of each: keys and values, or a state.
    static size_t cell_floats(const Stack& stack);
    // The same with the first layers of the decoder alone, on the same weights; of each, whether its attention to the
    // target, its attention to the source and its feed-forward network are computed.
    std::shared_ptr<Network> view(const std::vector<std::array<bool, 3>>& computed) const;
};

// A block of floats that only grows.
class Buffer {
  public:
    ~Buffer() { release(data); }
    float* get(size_t count);
    const float* floats() const { return data; }

  private:
    float* data = nullptr;
    size_t size = 0;
};

struct Workspace {
    Buffer x, normed, projected, attended, inner, gated, logits, weights, quantised, scales, biases;
    Buffer patches, channels[2], joined, merged, packed, zeros;
};

struct Memory {
    int length = 0;
    std::vector<int> tokens;    // [S]
    std::vector<float> output;  // [S,d]
    int fires = 0;
    std::vector<float> fire_weights;  // [S]
    std::vector<float> fired;         // [fires,d], what continuous integrate-and-fire makes of the output
    // Keys and values of the decoder's layers, [layer][head][keys, values][S,f]: what one query reads lies together.
    Buffer kv;
    bool halves = false;  // they lie as fp16
    std::vector<std::vector<const float*>> rows;  // of each layer, [S]
};

// Relative positions as heads of layers read them: as weights of linear layers, whose outputs are the distances
// from longest - 1 down to 1 - longest.
struct Distances {
    int longest = 0;
    std::deque<Buffer> layers;  // of each head, one after the other
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
    const int* word_offsets = nullptr;
    const int* words = nullptr;  // ascending lists of those that there are; an empty one: all
    int top = 0;
    bool margin = false;
    const int* given = nullptr;
    Drawing draw;
};

struct Read {
    const Linear* head;  // the output layer, or that of CTC
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

// Spectrograms of sentences behind each other, and the prosody of their phonemes.
struct Spoken {
    std::vector<float> mel;              // [frames,bins]
    std::vector<int> frames, durations;  // of each sentence; of each phoneme
    std::vector<float> log_durations, pitch, energy;  // as predicted
};

// Weights of cross-attention that a pass over one source shows.
struct Watched {
    std::vector<std::vector<int>> rows;  // [layers][heads]: place among the watched heads, or -1
    int heads = 0, tokens = 0, positions = 0;
    float* weights = nullptr;  // [heads,tokens,positions]
};

constexpr int COPIED = -1;  // in place of a word: what the network copies from the source

// Places of rows, row after row, those of a row from position 0 on; they see one another.
struct Canvas {
    int rows;
    const int *memories, *lengths;  // [rows]
    const int* words;               // [N], or COPIED
    const float* fired = nullptr;   // [N,d], in place of the sources' own fires; as many as there are positions for
};

// Rows that draft: each reads tokens that its context does not hold, and goes on behind the last.
struct Chains {
    int count;
    const int *memories, *contexts, *most;  // [count]; most: of a draft, tokens
    const int *offsets, *tokens;            // those of a row are [offsets[b],offsets[b+1])
};

// Which words are drafted, and what ends a draft besides its length.
struct ChainRule {
    const int* ends;  // words that end it
    int end_count;
    double least;        // log-probability of a draft below which the word that takes it there is the last
    float least_likely;  // log-probability below which a word is not drafted
    const int* words = nullptr;  // ascending, those that there are; none: all
    int word_count = 0;
};

struct Chain {
    std::vector<int> words;
    std::vector<float> log_probs;
    int passes = 0;
};

class Engine {
  public:
    // of: the engine whose encoded sources it reads, in place of its own; its network is a view of that one's.
    Engine(std::shared_ptr<const Network> network, const Kernels* kernels, int threads, Engine* of = nullptr);
    ~Engine();

    std::vector<int> encode(const int* tokens, const int* lengths, int count);
    // A source of frames [T,F], with words in front of them and a prompt.
    struct Speech {
        const float* frames;
        int length;
        const int *words, *prompt;
        int word_count, prompt_count;
    };
    std::vector<int> encode_speech(const std::vector<Speech>& sources);
    // Sources that another model has encoded: vectors [N,d], those of a source behind each other.
    std::vector<int> encode_vectors(const float* vectors, const int* lengths, int count);
    void free(const int* memories, int count);
    struct Tokens {
        int count;
        const int *words, *positions, *memories, *contexts, *parents;
    };
    std::shared_ptr<Pending> run(const Tokens& tokens, const Want& want, Read& read, const Watched* watched = nullptr);
    // Drafts of the likeliest words, as pass after pass gives them; contexts then hold what was read. Broken off, they
    // hold what they did before.
    std::vector<Chain> draft(const Chains& chains, const ChainRule& rule);
    // A canvas in one pass: what the output layer reads at the places `only`, [n,d].
    void fill(const Canvas& canvas, const std::vector<int>& only, std::vector<float>& hidden);
    // Reads words at found.hidden [n,d], for want.only of n.
    void read(const Want& want, Read& found);
    // Reads what positions of encoded sources say, of all of them those of want.only.
    void read_encoded(const int* memories, int count, const Want& want, Read& found);
    // Logits [count,C] of lengths of the outputs of encoded sources.
    void length_logits(const int* memories, int count, float* to);
    // Log-probabilities of the next vertex, [L,L] of each graph: hidden [N,d] of graphs of L vertices.
    void links(const float* hidden, const int* lengths, int count, float* to);
    // Spectrograms of what is read [N,inputs] of sentences of so many phonemes, the last of which is eos.
    void speak(const float* features, const int* lengths, int count, Spoken& spoken);
    // Logits [m,V] of hidden features [m,d].
    void logits(const Linear& head, const float* hidden, int count, float* to);
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
    using Made = std::vector<std::shared_ptr<Memory>>;
    // Encodes sources of so many positions, as many together as fit: enter(first, last, x) writes what layers of
    // `stack` read. What they give, layers of `readers` attend to. prompts: what they read beside it, if anything.
    template <class Enter>
    Made encode_all(Workspace& space, const Stack& stack, const Stack& readers, const std::vector<int>& lengths,
                    Enter enter, const Made& prompts = {});
    // Keys and values that the decoder reads of vectors [N,d], which are encoded already.
    Made read_vectors(Workspace& space, const float* features, const std::vector<int>& lengths);
    void check_words(const int* words, int count, int index) const;
    std::vector<int> keep(const Made& made);
    void linear(Workspace& space, const Linear& w, const float* x, int n, int ldx, float* y, int ldy,
                Epilogue epilogue = {});
    void embed(const Embedding& embedding, const int* words, const int* positions, int n, float* x);
    void vector(const Embedding& embedding, int word, float* x);
    void place(const Embedding& embedding, const int* positions, int n, float* x);  // adds positions to vectors
    void copy_source(Workspace& space, const Memory& source, const float* fired, const int* words, int places, float* x);
    void normed(const Norm& norm, const float* x, int n, float* y) { normed(norm, x, n, y, step_of(norm.features)); }
    void normed(const Norm& norm, const float* x, int n, float* y, int step);
    void finish(float* row, float* to);  // what the output layer reads, [d]
    const float* biases(Workspace& space, const Stack& stack, int longest);
    // x = x + inner(norm(x)) or norm(x + inner(x)): `inner` adds what it gives to x.
    template <class Inner>
    void sublayer(Workspace& space, const Norm& norm, bool first, float* x, int n, Inner inner) {
        if (first) {
            float* y = space.normed.get((size_t)n * step_of(norm.features));
            normed(norm, x, n, y);
            inner(y);
        } else {
            inner(x);
            normed(norm, x, n, x);
        }
    }
    template <class Kept, class Over, class Seen>
    void attention(Workspace& space, const Layer& layer, const Norm& norm, const Linear& in, const Linear& out,
                   float* x, int n, int longest, const float* biases, Kept kept, Over over, Seen seen);
    // Tokens of a pass through the decoder's layers: `enter` writes what these read of m tokens from `first` on, and
    // `leave` takes what they give. Their contexts wait for the end of the pass.
    using Through = std::function<void(Workspace& space, int first, int m, float* x)>;
    using Sources = std::vector<std::shared_ptr<const Memory>>;  // of each token
    std::shared_ptr<Pending> decode(const Sources& sources, const int* contexts, const int* parents,
                                    const Through& enter, const Through& leave, const Watched* watched = nullptr);
    void pass_over(const Norm& norm, bool first, float* x, int n) {  // a sublayer that gives zeros
        if (!first) normed(norm, x, n, x);
    }
    void attend_rows(Workspace& space, const Layer& layer, float* x, int n, const Rows& rows,
                     const float* biases = nullptr);
    void attend_sources(Workspace& space, const Layer& layer, float* x, int n, int index,
                        const std::shared_ptr<const Memory>* sources, const Watched* watched = nullptr, int first = 0);
    template <class Of>
    void recur(Workspace& space, const Layer& layer, float* x, int n, Of of);  // of(token): its State
    void feed_forward(Workspace& space, const FeedForward& ffn, bool norm_first, float* x, int n);
    // What the network gives of y [n,step], at most CHUNK of them, without norm -> to, or added to it.
    void feed(Workspace& space, const FeedForward& ffn, const float* y, int n, float* to, bool residual);
    // Of speech, in speech.cpp.
    void subsample(Workspace& space, const float* frames, int count, float* x);
    const float* convolved(Workspace& space, const float* frames, int count, int first, int last);
    void attend_products(Workspace& space, const Layer& layer, const Distances* distances, const float* qkv, int wide,
                         const Rows& rows, float* attended);
    void attend_positions(Workspace& space, const Layer& layer, const Distances* distances, const float* y, int step,
                          const Rows& rows, float* to, int ldt, bool residual);
    void stack_frames(const float* frames, int count, float* x);
    void add_memory(Workspace& space, const Depthwise& memory, const float* y, const Rows& rows, float* x);
    void enter_layer(Workspace& space, const Layer& layer, const float* entered, const Rows& rows, float* x);
    void fed_layer(Workspace& space, const Layer& layer, float* x, const Rows& rows);
    void convolve(const Depthwise& by, const float* x, int ldx, const Rows& rows, float* y, int ldy);
    void gate(Workspace& space, const Gating& gating, const float* y, const Rows& rows, float* to, int ldt,
              bool residual);
    void speech_layer(Workspace& space, const Layer& layer, const Distances* distances,
                      const std::vector<std::shared_ptr<const Memory>>& prompts, float* x, const Rows& rows);
    void condition(Workspace& space, float* x, int n);
    std::shared_ptr<const Distances> distances(Workspace& space, int longest);
    void fire(Workspace& space, Memory& memory);
    // Of spectrograms, in acoustic.cpp.
    void convolve(Workspace& space, const Linear& taps, int channels, const float* x, int n, int ldx, float* y,
                  int ldy, Epilogue epilogue);
    void speak_steps(const float* features, const std::vector<int>& lengths, Spoken& spoken);
    void acoustic_layer(Workspace& space, const Layer& layer, float* x, int n);
    std::vector<float> predict(Workspace& space, const Predictor& by, const float* x, int n);
    void link_row(Workspace& space, const float* hidden, int count, float* to);
    void read(Workspace& space, const Want& want, Read& read);
    // The output layer's listed words alone; the layers that were used last are kept.
    struct Listed {
        const Linear* from;
        std::vector<int> words;
        Packed layer;
        Listed(const Linear& from, const int* words, int count)
            : from(&from), words(words, words + count), layer(from, words, count) {}
    };
    std::shared_ptr<const Listed> listed(const Linear& head, const int* words, int count);
    void read_row(const float* row, const Listed* list, int index, const Want& want, Read& read,
                  std::vector<float>& copy);

    Engine* const of;
    std::mutex mutex;  // of memories, spaces and listed layers
    std::list<std::shared_ptr<const Listed>> lists;  // those that were used last come first
    size_t list_bytes = 0;
    std::unordered_map<int, std::shared_ptr<const Memory>> memories;
    int next_memory = 0;
    std::vector<std::unique_ptr<Workspace>> spaces;
    std::shared_ptr<const Distances> projected;  // of the longest source so far
};

}  // namespace nartk
