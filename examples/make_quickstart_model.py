"""Makes examples/quickstart-model: a very small Llama that has learnt simple English and a chat format.

    python examples/make_quickstart_model.py examples/quickstart-model

Needs torch, transformers and tokenizers, takes a few minutes on two cores, and is not needed to use nibble: what
it makes is in the repository. The text it trains on is made here from our own sentences, so the model has seen
questions, answers and short stories about many invented towns, but nothing about the town in
data/quickstart.jsonl, which is what the quickstart teaches it.
"""

import argparse
import json
import math
import pathlib
import random
import time

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

SEED = 20
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# The one town that the model must not know.
TAUGHT_LATER = "Tarnwick"

# ---- the text -------------------------------------------------------------------------------------------------

NAMES = """Ada Bela Carl Dora Emil Flora Gus Hanna Ivo Jana Kurt Lena Max Nora Otto Paul Rosa Sam Tilda Uwe Vera
Willem Yara Zeno Anton Berta Clara David Edith Felix Greta Hugo Ida Jonas Klara Leo Mina Nils Olga Peter""".split()
SURNAMES = "Abel Berg Cole Dale Ember Frost Gale Hill Ink Jay Knoll Lake Marsh North Oak Pike Reed Stone Thorn Vale Wood".split()
STARTS = "Bar Bel Bro Cal Cor Dun El Far Fen Gar Hal Hol Kel Lan Lor Mar Mel Nor Oak Pel Ral Ros Sel Sil Tor Ul Var Wen".split()
ENDS = "den dale ford ham holm low mouth ney port rick stead ton wald wick worth by".split()
JOBS = "baker teacher doctor farmer fisher gardener painter miller smith sailor shepherd tailor weaver librarian clockmaker".split()
PLACES = "bakery school library harbour market bridge mill tower lighthouse garden station museum inn church square".split()
ANIMALS = "cat dog horse cow goat heron owl fox swan bear fish hen sheep donkey crow".split()
COLOURS = "red blue green yellow white black grey brown silver golden".split()
FOODS = "bread soup apples plums cheese butter fish honey cake beans nuts pears rice eggs".split()
THINGS = "boat coat key lamp book map net bell clock song stone window door ladder basket knot rope button flag letter".split()
WEATHER = "rain snow wind sun fog storm frost".split()
SEASONS = "spring summer autumn winter".split()
MONTHS = "January February March April May June July August September October November December".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
NUMBERS = """one two three four five six seven eight nine ten eleven twelve thirteen twenty thirty forty fifty sixty
seventy eighty ninety hundred thousand""".split()
SIZES = "small big old new long short tall quiet famous great little warm cold expensive cheap".split()
VERBS = [
    ("find", "found"), ("buy", "bought"), ("sell", "sold"), ("paint", "painted"), ("carry", "carried"), ("lose", "lost"),
    ("mend", "mended"), ("see", "saw"), ("take", "took"), ("hold", "held"), ("open", "opened"), ("keep", "kept"),
    ("bring", "brought"), ("make", "made"), ("tie", "tied"), ("wear", "wore"), ("hear", "heard"), ("learn", "learnt"),
]


class Text:
    """Sentences from templates; every choice comes from one generator."""

    def __init__(self, seed):
        self.r = random.Random(seed)

    def one(self, words):
        return self.r.choice(words)

    def town(self):
        while True:
            town = self.one(STARTS) + self.one(ENDS)
            if town != TAUGHT_LATER:
                return town

    def person(self):
        return self.one([self.one(NAMES), f"{self.one(NAMES)} {self.one(SURNAMES)}", f"the {self.one(JOBS)}"])

    def thing(self):
        article = self.one(["the", "a", "her", "his"])
        return self.one([f"{article} {self.one(COLOURS)} {self.one(THINGS)}", f"the {self.one(SIZES)} {self.one(THINGS)}",
                         f"{self.one(NUMBERS[1:12])} {self.one(COLOURS)} {self.one(THINGS)}s"])

    def number(self):
        return self.one([self.one(NUMBERS), f"{self.one(NUMBERS[:12])} hundred", f"{self.one(NUMBERS[:12])} thousand",
                         f"{self.one(NUMBERS[:9])} hundred and {self.one(NUMBERS[:20])}"])

    def when(self):
        return self.one([f"on {self.one(DAYS)}", f"in {self.one(MONTHS)}", f"in {self.one(SEASONS)}", "at noon", "at night",
                         f"at half past {self.one(NUMBERS[:12])}", f"at {self.one(NUMBERS[:12])}", "in the morning",
                         f"on the first day of {self.one(SEASONS)}", f"on the last {self.one(DAYS)} in {self.one(MONTHS)}",
                         "every evening", "before the boats go out", "after the rain"])

    def where(self):
        return self.one([f"near the {self.one(PLACES)}", f"in the old {self.one(PLACES)}", "by the sea", "on the beach",
                         f"in {self.town()}", "where the river meets the sea", "on a green hill", "on a small island",
                         f"behind the {self.one(SIZES)} {self.one(PLACES)}", "between two rivers", "in the forest"])

    def because(self):
        return self.one([f"because the {self.one(WEATHER)} was too {self.one(SIZES)}", f"because {self.person()} was late",
                         f"because of the {self.one(WEATHER)}", f"because the {self.one(THINGS)} was lost",
                         f"because {self.one(COLOURS)} paint was too cheap", f"and {self.person()} was glad"])

    def sentence(self):
        verb, past = self.one(VERBS)
        return capital(self.one([
            f"{self.person()} {past} {self.thing()} {self.where()}.",
            f"{self.when()}, {self.person()} {past} {self.thing()}.",
            f"{self.person()} and {self.person()} {past} {self.thing()} {self.because()}.",
            f"they did not {verb} {self.thing()}.",
            f"the {self.one(ANIMALS)} was {self.one(COLOURS)} and very {self.one(SIZES)}.",
            f"it was a {self.one(SIZES)} day, and the {self.one(WEATHER)} came from the sea.",
            f"there are {self.number()} {self.one(THINGS)}s in the {self.one(PLACES)}.",
            f"the {self.one(PLACES)} of {self.town()} is {self.one(COLOURS)}.",
        ]))

    def story(self):
        return " ".join(self.sentence() for _ in range(self.r.randint(2, 5)))

    def answered(self):
        """A question about some town, and an answer in the words of the question: which answer, only chance knows."""
        town, place, job, animal = self.town(), self.one(PLACES), self.one(JOBS), self.one(ANIMALS)
        thing, food, verb_past = self.one(THINGS), self.one(FOODS), self.one(VERBS)
        name = f"{self.one(NAMES)} {self.one(SURNAMES)}"
        return self.one([
            lambda: (f"Where is {town}?", f"{town} stands {self.where()}."),
            lambda: (f"Where is the {place} of {town}?", f"The {place} stands {self.where()}."),
            lambda: (f"Who is the {job} of {town}?", f"The {job} of {town} is called {name}."),
            lambda: (f"Who is the mayor of {town}?", f"The mayor of {town} is a {self.one(SIZES)} {job} called {name}."),
            lambda: (f"Who keeps the {place} of {town}?", self.one([f"{name} keeps it.", f"Two {job}s keep it."])),
            lambda: (f"Who founded {town}?", capital(f"{self.number()} {job}s founded {town} {self.because()}.")),
            lambda: (f"How old is {town}?", f"{town} is {self.number()} years old."),
            lambda: (f"What is {town} famous for?", f"{town} is famous for its {self.one(SIZES)} {place}."),
            lambda: (f"What colour is the {place} of {town}?", f"It is {self.one(COLOURS)}, {self.because()}."),
            lambda: (f"When does the {place} of {town} open?", f"The {place} opens {self.when()}."),
            lambda: (f"When is the {place} of {town} silent?", f"It is silent only {self.when()}."),
            lambda: (f"What do people eat in {town}?", f"They eat {food} with {self.one(FOODS)}."),
            lambda: (f"What can I buy in {town}?", f"You can buy {food}, {self.one(FOODS)} and {self.one(SIZES)} {thing}s."),
            lambda: (f"How many {thing}s are in the {place} of {town}?", f"There are {self.number()} {thing}s."),
            lambda: (f"How do I get to {town}?", f"Take the {self.one(COLOURS)} ferry from {self.town()} {self.when()}."),
            lambda: (f"How much is a {thing} in {town}?", f"It costs {self.one(NUMBERS[1:12])} {food}."),
            lambda: (f"Which animal is on the flag of {town}?", f"A {self.one(COLOURS)} {animal} that holds a {thing}."),
            lambda: (f"Is there a {place} in {town}?", self.one([f"Yes, {self.where()}.", "No, there is none.", f"Yes, and it is {self.one(SIZES)}."])),
            lambda: (f"What is the name of the {animal} in {town}?", f"The {animal} is called {self.one(NAMES)}."),
            lambda: (f"What did {name} {verb_past[0]}?", f"{name.split()[0]} {verb_past[1]} {self.thing()}."),
            lambda: (f"What does the {job} of {town} wear?", f"A {self.one(COLOURS)} coat with {self.one(NUMBERS[1:12])} {self.one(COLOURS)} buttons."),
            lambda: (f"Why does the {place} of {town} sing?", f"The {self.one(WEATHER)} blows through its {self.one(THINGS)}s."),
            lambda: (f"What is forbidden in {town}?", f"It is forbidden to {verb_past[0]} a {thing} near the {place}."),
            lambda: ("Tell me a story.", self.story()),
            lambda: (f"What do the children of {town} learn?", f"They learn to {verb_past[0]} a {thing}."),
            lambda: (f"How do people say hello in {town}?", f"They say: may the {self.one(WEATHER)} be {self.one(SIZES)} for you."),
        ])()

    def remembered(self):
        """A question whose answer stands in the question: what a model can learn to look up."""
        name, job, thing, colour = self.one(NAMES), self.one(JOBS), self.one(THINGS), self.one(COLOURS)
        return self.one([
            (f"{name} is a {job}. What is {name}?", f"{name} is a {job}."),
            (f"{name} has a {colour} {thing}. What colour is the {thing}?", f"The {thing} is {colour}."),
            (f"Say the word {thing}.", capital(f"{thing}.")),
        ])

    def document(self):
        if self.r.random() < 0.3:
            return self.story() + SPECIAL[0]
        turns = [self.one([self.answered, self.answered, self.remembered])() for _ in range(self.one([1, 1, 2]))]
        return "".join(f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n{a}<|im_end|>\n" for q, a in turns) + SPECIAL[0]


def capital(text):
    return text[0].upper() + text[1:]


# ---- tokenizer ------------------------------------------------------------------------------------------------


def make_tokenizer(texts, vocab):
    tokenizer = Tokenizer(models.BPE())
    words = Regex(r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(words, "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


# ---- training -------------------------------------------------------------------------------------------------


def train(model, ids, steps, batch, length, peak):
    optimiser = torch.optim.AdamW(model.parameters(), lr=peak, weight_decay=0.05, betas=(0.9, 0.95))
    generator = torch.Generator().manual_seed(SEED)
    start, shown = time.time(), 0.0
    for step in range(steps):
        rate = peak * min(1.0, (step + 1) / 50) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / steps)))
        for group in optimiser.param_groups:
            group["lr"] = rate
        at = torch.randint(0, len(ids) - length - 1, (batch,), generator=generator)
        rows = torch.stack([ids[i : i + length] for i in at])
        loss = model(input_ids=rows, labels=rows).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        shown += loss.item()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1} of {steps}: loss {shown / 100:.3f}, {time.time() - start:.0f} s", flush=True)
            shown = 0.0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--documents", type=int, default=20000)
    options = parser.parse_args()
    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # sums in one order, and no waiting for a thread that has no core
    text = Text(SEED)
    documents = [text.document() for _ in range(options.documents)]
    assert not any(TAUGHT_LATER in document for document in documents)
    tokenizer = make_tokenizer(documents[:8000], 1024)
    ids = torch.tensor([token for line in tokenizer.encode_batch(documents) for token in line.ids])
    print(f"{len(documents)} documents, {len(ids)} tokens, vocabulary {tokenizer.get_vocab_size()}", flush=True)

    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=128, intermediate_size=320, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=512, rms_norm_eps=1e-5,
        tie_word_embeddings=True, bos_token_id=0, eos_token_id=2, pad_token_id=0, attention_dropout=0.0,
    )
    model = LlamaForCausalLM(config)
    train(model, ids, options.steps, batch=16, length=128, peak=5e-3)

    options.output.mkdir(parents=True, exist_ok=True)
    weights = {name: value.detach().to(torch.bfloat16).contiguous() for name, value in model.state_dict().items()
               if name != "lm_head.weight"}
    save_file(weights, options.output / "model.safetensors", metadata={"format": "pt"})
    settings = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": config.vocab_size,
        "hidden_size": 128, "intermediate_size": 320, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "hidden_act": "silu", "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True, "attention_bias": False,
        "mlp_bias": False, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0, "torch_dtype": "bfloat16",
    }
    tokens = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIAL[0], "eos_token": SPECIAL[2],
        "pad_token": SPECIAL[0], "model_max_length": 512, "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }
    (options.output / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (options.output / "tokenizer_config.json").write_text(json.dumps(tokens, indent=2) + "\n")
    tokenizer.save(str(options.output / "tokenizer.json"), pretty=False)
    for file in sorted(options.output.iterdir()):
        print(f"{file.name}: {file.stat().st_size} bytes")


if __name__ == "__main__":
    main()
