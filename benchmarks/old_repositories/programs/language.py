"""Networks for text and sequences."""

from benchmarks.old_repositories.made_up import texts
from benchmarks.old_repositories.program import Program

PAIRS = tuple(
    texts.text(f"{part}.{side}", lines, 200)
    for part, lines in (("train", 200), ("dev", 20), ("test", 20))
    for side in ("src", "trg")
)

PROGRAMS = (
    Program(
        "soskek/rnnlm_chainer",
        "66a38569aeb9",
        kind="language model",
        chainer="2",
        command="train.py -u 100 --layer 1",
    ),
    Program(
        "soskek/efficient_softmax",
        "efbe2266d646",
        kind="language model",
        chainer="2",
        command="train.py -u 100 --layer 1",
    ),
    Program(
        "soskek/attention_is_all_you_need",
        "1c72fd1e50c1",
        kind="Transformer",
        chainer="2",
        command="train.py -b 8 -u 64 -l 2 -s train.src -t train.trg -svalid dev.src"
        " -tvalid dev.trg --no-bleu",
        data=PAIRS,
        needs=("progressbar2", "nltk"),
        steps=10,
    ),
    Program(
        "odashi/chainer_nmt",
        "614f12c601ed",
        kind="seq2seq",
        chainer="1",
        command="train_encdec.py --train-src train.src --train-trg train.trg"
        " --dev-src dev.src --dev-trg dev.trg --test-src test.src"
        " --test-trg test.trg --output result --train-batch-size 16"
        " --test-batch-size 16 --max-sample-length 30 --max-length-ratio 5"
        " --max-generation-length 30 --total-steps 100 --eval-interval 50"
        " --learning-rate 0.001 --gradient-clipping 2 --weight-decay 0.0001"
        " --gpu -1 --src-vocab-size 203 --trg-vocab-size 203 --embed-size 32"
        " --hidden-size 32",
        data=tuple(
            texts.numbers(f"{part}.{side}", lines, 200)
            for part, lines in (("train", 200), ("dev", 20), ("test", 20))
            for side in ("src", "trg")
        ),
        steps=10,
    ),
    Program(
        "svoss/vdcnn-chainer",
        "47fdf434d977",
        kind="text classification",
        chainer="3",
        command="with_model.py model 'VDCNN(9, 4)' 'i4<69:8,256' 'i4<4:8'"
        " --loss softmax_cross_entropy",
        folder="vdccnn",
        steps=6,
    ),
    Program(
        "tma15/chainer_examples",
        "8dd6db47012e",
        kind="tagging",
        chainer="1",
        command="train_model.py",
        folder="bilstm_tag",
        data=(texts.tagged_words("train.txt", "{word} x {tag}"),),
    ),
    Program(
        "sakabar/seq2seq_chainer_sample",
        "1661145523c0",
        kind="seq2seq",
        chainer="1",
        command="src/model_train.py",
        data=(
            texts.lines("vocab.txt", [f"{i} w{i}" for i in range(301)]),
            # Short sentences, because loops over words are slow.
            texts.lines("utt.txt", [f"w{i} w{i + 2} w{i + 4}" for i in range(60)]),
            texts.lines("res.txt", [f"w{i + 1} w{i + 3} w{i}" for i in range(60)]),
        ),
        steps=2,
    ),
    Program(
        "butsugiri/chainer-rnn-ner",
        "829fb640cd62",
        kind="tagging",
        chainer="1.19",
        command="train_model.py --model-type bilstm",
        folder="bin",
        data=(texts.named_entities("../work"),),
        steps=10,
    ),
    Program(
        "koreyou/listnet_chainer",
        "be3a2f26557c",
        kind="ranking",
        chainer="1",
        command="bin/train.py",
        data=tuple(
            texts.ranked_lists(f"build/MQ2007/Fold1/{part}.txt")
            for part in ("train", "vali", "test")
        ),
        # Arrays of map's results, and xrange.
        beyond="Python 2",
    ),
    Program(
        "butsugiri/chainer-qrnn",
        "0ace4411b3e4",
        kind="language model",
        chainer="1",
        command="train_qrnn.py",
        folder="bin",
        data=tuple(
            texts.text(f"../data/ptb/{p}.txt") for p in ("train", "valid", "test")
        ),
        steps=10,
    ),
    Program(
        "musyoku/chainer-qrnn",
        "ee73f6a23941",
        kind="language model",
        chainer="2",
        command="train.py -g -1 -b 8 -nh 32 -ne 32 -train made_up.txt -dev dev.txt",
        folder="rnn",
        data=(texts.text("made_up.txt"), texts.text("dev.txt", 50)),
        # int() of an array with one element.
        needs=("numpy<2.4",),
        steps=10,
    ),
    Program(
        "soskek/bert-chainer",
        "22cc04afff4d",
        kind="Transformer",
        chainer="5",
        command="with_model.py modeling"
        " 'BertClassifier(BertModel(BertConfig(50, 32, 2, 2, 64)), 3)'"
        " i4<50:4,12 i4<2:4,12 i4<2:4,12 i4<3:4",
        steps=10,
    ),
    Program(
        "enceladus-rex/chainer-transformer",
        "6db0e0ea4b71",
        kind="Transformer",
        chainer="6",
        command="with_model.py chainer_transformer.links"
        " 'TransformerEncoder(2, 4, 32, 64, 0.1)' f4:4,10,32",
        steps=10,
    ),
)
