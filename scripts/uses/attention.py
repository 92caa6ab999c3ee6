"""Attention and language models."""

import torch

from scripts.uses.use import On, use


@use("transformers", "language models", "a causal language model (Llama)")
def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)).eval()
    return On(lambda model, ids: model(ids, use_cache=False).logits, model), (torch.randint(64, (2, 9)),)


@use("sentence-transformers", "language models", "pooled and normalised embeddings of sentences")
def sentences():
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    pooling, normalize = Pooling(16, pooling_mode="mean"), Normalize()
    mask = torch.arange(7) < torch.tensor([[7], [4]])
    return (
        lambda x: normalize(pooling({"token_embeddings": x, "attention_mask": mask}))["sentence_embedding"],
        (torch.randn(2, 7, 16),),
    )


@use("x-transformers", "attention", "a decoder with rotary embeddings and gated feedforwards")
def x_transformers():
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(dim=32, depth=2, heads=4, rotary_pos_emb=True, ff_glu=True)
    model = TransformerWrapper(num_tokens=50, max_seq_len=16, attn_layers=layers).eval()
    return model, (torch.randint(50, (2, 12)),)


@use("peft", "language models", "low-rank adapters of a layer")
def adapters():
    from peft import LoraConfig, get_peft_model

    base = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    config = LoraConfig(r=2, target_modules=["0", "2"], init_lora_weights=False)
    return On(lambda model, x: model(x), get_peft_model(base, config).eval()), (torch.randn(5, 8),)


@use("open-clip-torch", "language models", "similarities of images and texts")
def clip():
    from open_clip.model import CLIP

    vision = {"layers": 1, "width": 32, "head_width": 16, "patch_size": 8, "image_size": 16}
    text = {"context_length": 8, "vocab_size": 40, "width": 32, "heads": 2, "layers": 1}
    model = CLIP(16, vision, text).eval()
    similar = On(lambda model, image, text: model(image, text)[:2], model)
    return similar, (torch.randn(2, 3, 16, 16), torch.randint(40, (2, 8)))


@use("vit-pytorch", "vision", "a vision transformer that trains on few images (SimpleViT)")
def simple_vit():
    from vit_pytorch import SimpleViT

    sizes = {"image_size": 16, "patch_size": 8, "num_classes": 5, "dim": 32, "mlp_dim": 64}
    return SimpleViT(**sizes, depth=1, heads=2, dim_head=16), (torch.randn(2, 3, 16, 16),)


@use("perceiver-pytorch", "attention", "a perceiver of images")
def perceiver():
    from perceiver_pytorch import Perceiver

    sizes = {"num_latents": 8, "latent_dim": 16, "cross_dim_head": 8, "latent_dim_head": 8, "latent_heads": 2}
    frequencies = {"num_freq_bands": 3, "max_freq": 10.0, "input_channels": 3, "input_axis": 2}
    model = Perceiver(**sizes, **frequencies, depth=2, num_classes=4, weight_tie_layers=True)
    return model.eval(), (torch.randn(2, 6, 6, 3),)


@use("performer-pytorch", "attention", "linear attention by random features (FAVOR+)")
def performer():
    from performer_pytorch import SelfAttention

    return SelfAttention(dim=16, heads=2, dim_head=8, causal=False).eval(), (torch.randn(2, 10, 16),)


@use("local-attention", "attention", "causal attention in windows, with rotary positions")
def local_attention():
    from local_attention import LocalAttention

    attention = LocalAttention(dim=8, window_size=4, causal=True, look_backward=1, autopad=True)
    return attention, tuple(torch.randn(2, 2, 10, 8) for _ in range(3))


@use("linformer", "attention", "attention with keys projected to fewer")
def linformer():
    from linformer import LinformerSelfAttention

    return LinformerSelfAttention(dim=16, seq_len=12, heads=2, k=4), (torch.randn(2, 12, 16),)


@use(
    "nystrom-attention",
    "attention",
    "attention by Nyström's approximation, with an iterated inverse",
)
def nystrom():
    from nystrom_attention import NystromAttention

    return NystromAttention(dim=16, dim_head=8, heads=2, num_landmarks=4), (torch.randn(2, 12, 16),)


@use("lambda-networks", "attention", "a lambda layer with local positions")
def lambda_layer():
    from lambda_networks import LambdaLayer

    return LambdaLayer(dim=8, dim_out=8, r=5, dim_k=4, heads=2, dim_u=1).eval(), (torch.randn(2, 8, 6, 6),)


@use("rotary-embedding-torch", "attention", "rotary positions of queries and keys")
def rotary():
    from rotary_embedding_torch import RotaryEmbedding

    embedding = RotaryEmbedding(dim=8)
    return (
        On(lambda e, q, k: (e.rotate_queries_or_keys(q), e.rotate_queries_or_keys(k)), embedding),
        (torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8)),
    )


@use("vector-quantize-pytorch", "compression", "residual codes with straight-through gradients")
def residual_codes():
    from vector_quantize_pytorch import ResidualVQ

    model = ResidualVQ(dim=8, num_quantizers=2, codebook_size=16, kmeans_init=False)
    return On(lambda layer, model, x: model(layer(x)), torch.nn.Linear(6, 8), model), (torch.randn(2, 5, 6),)


@use("entmax", "attention", "sparse attention weights (entmax 1.5 and sparsemax)")
def entmax():
    from entmax import entmax15, sparsemax

    return lambda x: (entmax15(x, dim=-1), sparsemax(x, dim=-1)), (torch.randn(4, 7),)


@use("pytorch-crf", "language models", "the likelihood of tags in a conditional random field")
def tags():
    from torchcrf import CRF

    mask = torch.arange(6) < torch.tensor([[6], [4]])
    labels = torch.randint(4, (2, 6))
    return On(lambda crf, x: crf(x, labels, mask), CRF(4, batch_first=True)), (torch.randn(2, 6, 4),)


@use("mambapy", "state-space models", "a selective state-space block, by a parallel scan")
def mamba():
    from mambapy.mamba import Mamba, MambaConfig

    return Mamba(MambaConfig(d_model=8, n_layers=1, d_state=4)), (torch.randn(2, 8, 8),)


@use("xlstm", "state-space models", "a block of a matrix memory (mLSTM)")
def xlstm():
    from xlstm import mLSTMBlockConfig, mLSTMLayerConfig, xLSTMBlockStack, xLSTMBlockStackConfig

    layer = mLSTMLayerConfig(conv1d_kernel_size=4, qkv_proj_blocksize=4, num_heads=2)
    config = xLSTMBlockStackConfig(
        mlstm_block=mLSTMBlockConfig(mlstm=layer), context_length=8, num_blocks=1, embedding_dim=16
    )
    return xLSTMBlockStack(config), (torch.randn(2, 8, 16),)


@use("vit-pytorch", "vision", "attention within and between channels of an image (CvT's depthwise projections)")
def convolutional_attention():
    from vit_pytorch.cvt import Transformer

    return Transformer(8, proj_kernel=3, kv_proj_stride=2, depth=1, heads=2, dim_head=4, mlp_mult=2).eval(), (
        torch.randn(1, 8, 6, 6),
    )


@use("transformers", "language models", "an encoder of texts (BERT) with a padded batch")
def bert():
    from transformers import BertConfig, BertModel

    sizes = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    model = BertModel(BertConfig(**sizes, num_attention_heads=2), add_pooling_layer=False).eval()
    mask = (torch.arange(7) < torch.tensor([[7], [4]])).long()
    return On(lambda model, ids: model(ids, attention_mask=mask).last_hidden_state, model), (torch.randint(40, (2, 7)),)


@use("x-transformers", "attention", "an encoder with relative positions and normalised queries and keys")
def relative_positions():
    from x_transformers import Encoder

    encoder = Encoder(dim=16, depth=1, heads=2, attn_dim_head=8, rel_pos_bias=True, attn_qk_norm=True)
    return encoder.eval(), (torch.randn(2, 6, 16),)


@use("soft-moe-pytorch", "transformers", "a soft mixture of experts over a sequence")
def soft_experts():
    from soft_moe_pytorch import SoftMoE

    return SoftMoE(dim=8, seq_len=8, num_experts=2), (torch.randn(1, 8, 8),)


@use("reformer-pytorch", "transformers", "reversible layers with full attention")
def reversible_layers():
    from reformer_pytorch import Reformer

    options = {"bucket_size": 4, "n_hashes": 1, "use_full_attn": True, "reverse_thres": 1000, "causal": True}
    return Reformer(dim=16, depth=1, heads=2, **options).eval(), (torch.randn(1, 16, 16),)


@use("iTransformer", "transformers", "forecasts of several variates, over two horizons")
def forecasts():
    from iTransformer import iTransformer

    sizes = {"num_variates": 3, "lookback_len": 8, "dim": 8, "depth": 1, "heads": 2, "dim_head": 4}
    return iTransformer(**sizes, pred_length=(2, 4)).eval(), (torch.randn(2, 8, 3),)
