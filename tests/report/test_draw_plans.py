"""`plan.draw`: small programs as boxes, large ones as bytes by module, a module alone."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.show.figures import MOST_BOXES

MESH = sa.Mesh({"X": 2, "Y": 4})
WEIGHT, X = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((64, 64), (8, 64)))


def deep(layers):
    def net(weights, x):
        for i, w in enumerate(weights):
            with jax.named_scope(f"layers_{i}"):
                x = jnp.tanh(jnp.sin(x @ w) + jnp.cos(x))
        return (x * x).sum()

    given = [WEIGHT] * layers, X
    specs = [P("X", "Y")] * layers, P("X")
    return sa.plan(jax.grad(net), *given, mesh=MESH, in_shardings=specs)


@pytest.fixture(scope="module")
def plan():
    return deep(6)


def texts(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_a_large_program_is_drawn_as_the_bytes_of_its_modules(plan):
    (axes,) = plan.draw().axes
    sent = plan.collectives(by="module").groupby("module")["wire_bytes_per_step"].sum()
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert set(labels) == {name or "in no module" for name in sent.index}
    assert sum(bar.get_width() for bar in axes.patches) == sent.sum() > 0
    assert axes.get_xlabel() == "bytes sent per device and step"


def test_a_module_is_drawn_as_boxes_and_named_in_the_title(plan):
    figure = plan.draw(module="layers_2")
    assert texts(figure)[0].startswith("layers_2 of Mesh(X=2, Y=4): ")
    assert len(figure.axes[0].patches) < MOST_BOXES
    with pytest.raises(sa.TableError, match="no module 'layer_2'; it has layers_2"):
        plan.draw(module="layer_2")


def test_several_plans_are_one_figure(plan):
    other = plan.replan(mesh=sa.Mesh({"X": 4, "Y": 2}))
    figure = sa.draw({"ours": plan, "turned": other}, show="bytes")
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert {label.split(" · ")[0] for label in labels} == {"ours", "turned"}
    small = deep(1)
    assert texts(sa.draw({"one": small}))[0] == "one"


@pytest.mark.parametrize("show", ["boxes", 3])
def test_what_is_not_drawn_is_said(plan, show):
    with pytest.raises(sa.TableError, match="a plan is drawn as 'program' or as 'bytes'"):
        plan.draw(show=show)


def test_kinds_are_not_mixed(plan):
    halo = sa.halo(sa.Window(3), size=16, parts=4)
    with pytest.raises(sa.TableError, match="'plan' and 'halo' are of different kinds"):
        sa.draw({"plan": plan, "halo": halo})


def test_a_notebook_shows_the_figure_itself(plan):
    assert plan.draw()._repr_png_()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_long_title_of_a_narrow_drawing_goes_on_in_the_next_line():
    name = "a_feed_forward_block_of_a_rather_long_name_" * 3

    def layer(w, x):
        with jax.named_scope(name):
            return jnp.tanh(x @ w)

    plan = sa.plan(layer, WEIGHT, X, mesh=MESH, in_shardings=(P("X"), P("Y", "X")))
    figure = plan.draw(module=name)
    figure.canvas.draw()
    (title,) = [t for axes in figure.axes for t in axes.texts if t.get_weight() == "bold"][:1]
    assert title.get_text().count("\n") >= 1
    box, page = title.get_window_extent(), figure.bbox
    assert page.x0 <= box.x0 < box.x1 <= page.x1
    assert page.y0 <= box.y0 < box.y1 <= page.y1
