"""Every method has a test that compares it, in float64, with an oracle or a peer; and the floor with its recipe."""

import torch

from helpers.small import build, exact
from helpers.zoo import pictures
from method.aha import test_explainer as aha
from method.attention import test_biattn as biattn
from method.attention import test_inflow as inflow
from method.attention import test_legrad as legrad
from method.attention import test_rollout as attention
from method.attention import test_transition as transition
from method.cam import test_gradients as cam
from method.composition import test_plus as plus
from method.composition import test_var as var
from method.decomposition import test_alti as alti
from method.decomposition import test_decompx as decompx
from method.decomposition import test_norms as norms
from method.gradient import test_fullgrad as fullgrad
from method.gradient import test_guided as guided
from method.gradient import test_pixels as gradient
from method.guided import test_atman as atman
from method.guided import test_less_is_more as less_is_more
from method.guided import test_tis as tis
from method.guided import test_vit_cx as vit_cx
from method.mda import test_mda as mda
from method.perturbation import test_hsic as hsic
from method.perturbation import test_lime as lime
from method.perturbation import test_occlusion as occlusion
from method.perturbation import test_rise as rise
from method.perturbation import test_shapley as shapley
from method.relevance import test_lrp as relevance
from vitrail.method import METHODS


def test_random_is_drawn_from_the_picture_and_the_seed() -> None:
    """The key is a checksum of the float32 pixels, written here with Python's own whole numbers."""
    images = pictures(2, (64, 64))
    found = exact("random(seed=3)", build("class token"), images.double(), 0)
    for image, one in zip(images, found):
        bits = image.flatten().view(torch.int32).tolist()
        total = sum(value * ((i * 2654435761 + 1013904223) | 1) for i, value in enumerate(bits))
        key = (total ^ (3 * 0x9E3779B97F4A7C15)) & (2**63 - 1)
        assert torch.equal(one, torch.rand(4, 4, generator=torch.Generator().manual_seed(key)))


ORACLES = {
    "ablationcam": cam.test_ablationcam_is_its_definition_on_a_vit,
    "aha": aha.test_the_decoder_is_what_its_page_says,
    "alti": alti.test_agrees_with_explicit_vectors,
    "atman": atman.test_agrees_with_the_definition,
    "att_ixg": plus.test_plus_att_ixg_is_attcat,
    "attcam": cam.test_attcam_is_its_definition,
    "attcat": plus.test_plus_att_ixg_is_attcat,
    "attin": norms.test_the_map_is_the_papers_aggregation,
    "bt_h": biattn.test_agrees_with_the_matrix_form,
    "bt_t": biattn.test_agrees_with_the_matrix_form,
    "cat": plus.test_plus_ixg_is_the_sum_over_separate_networks_and_is_cat,
    "decompx": decompx.test_equals_the_forward_decomposition_from_every_start_layer,
    "eigencam": cam.test_eigencam_agrees_with_pytorch_grad_cam_up_to_its_sign,
    "fullgrad": fullgrad.test_fullgrad_is_its_definition_on_a_vit,
    "fullgrad_plus": fullgrad.test_fullgrad_plus_is_its_definition,
    "gbp": guided.test_gbp_agrees_with_captum,
    "genatt": attention.test_agrees_with_the_matrix_form,
    "globenc": norms.test_the_map_is_the_papers_aggregation,
    "grad_rollout": plus.test_grad_rollout_by_hand,
    "gradcam": cam.test_agrees_with_pytorch_grad_cam,
    "gradcam++": cam.test_agrees_with_pytorch_grad_cam,
    "gradsam": plus.test_plus_genatt_is_gradsam,
    "guided_gradcam": guided.test_guided_gradcam_agrees_with_captum,
    "hirescam": cam.test_agrees_with_pytorch_grad_cam,
    "hsic": hsic.test_agrees_with_full_matrices,
    "ig": gradient.test_ig_agrees_with_captum,
    "inflow": inflow.test_agrees_with_the_matrix_form,
    "ixg": gradient.test_saliency_and_ixg_agree_with_captum,
    "kernel_shap": shapley.test_kernel_shap_with_all_coalitions_is_exact,
    "layercam": cam.test_agrees_with_pytorch_grad_cam,
    "legrad": legrad.test_agrees_with_the_definition,
    "less_is_more": less_is_more.test_agrees_with_the_definition,
    "lime": lime.test_agrees_with_plain_least_squares,
    "lrp": relevance.test_agrees_with_the_layer_by_layer_form,
    "mda": mda.test_equals_the_paper_done_slowly,
    "n_res": norms.test_the_map_is_the_papers_aggregation,
    "occlusion": occlusion.test_occlusion_agrees_with_captum,
    "pami": occlusion.test_agrees_with_a_loop_over_windows,
    "partial_lrp": relevance.test_agrees_with_the_layer_by_layer_form,
    "plus": plus.test_plus_ixg_is_the_sum_over_separate_networks_and_is_cat,
    "random": test_random_is_drawn_from_the_picture_and_the_seed,
    "raw_attention": attention.test_agrees_with_the_matrix_form,
    "rise": rise.test_agrees_with_a_loop_over_masks,
    "rollout": attention.test_agrees_with_the_matrix_form,
    "saliency": gradient.test_saliency_and_ixg_agree_with_captum,
    "scorecam": cam.test_scorecam_agrees_with_pytorch_grad_cam,
    "shapley": shapley.test_shapley_is_the_mean_gain_along_its_own_orders,
    "skipplus": plus.test_skipplus_decompx_is_the_sum_of_forward_decompositions,
    "smoothgrad": gradient.test_smoothgrad_is_the_mean_over_noisy_copies,
    "t_attn": transition.test_agrees_with_the_matrix_form,
    "t_attr": relevance.test_agrees_with_the_layer_by_layer_form,
    "tis": tis.test_agrees_with_the_definition,
    "var": var.test_the_formula,
    "vit_cx": vit_cx.test_agrees_with_the_definition,
    "xgradcam": cam.test_agrees_with_pytorch_grad_cam,
    "xgradcam+": cam.test_xgradcam_plus_is_its_definition,
}
"""Where each method is compared; a new method needs a line here."""


def test_every_method_has_an_oracle() -> None:
    assert sorted(ORACLES) == sorted(METHODS)
