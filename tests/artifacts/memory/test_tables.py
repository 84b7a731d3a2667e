import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from artifacts.candidate import Language
from artifacts.measurement import Bottleneck, Outcome
from artifacts.memory.records import Transition
from artifacts.memory.schemas import DIRECTIONS, STRATEGIES, TRANSITIONS, canonical, content_hash
from artifacts.memory.tables import transition_rows, transitions_of
from artifacts.task import FAMILIES, TaskRef
from artifacts.trajectory import LARGEST_LOG2, SHORTEST_US, Provenance, State, TrustFlag

finite = st.floats(allow_nan=False, allow_infinity=False, width=64)
logarithm = st.floats(min_value=-LARGEST_LOG2, max_value=LARGEST_LOG2)
positive = st.floats(min_value=SHORTEST_US, max_value=1e9)
# Parquet text is UTF-8: lone surrogates are refused by the importers before they get here.
text = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
word = st.text("abcdefgh_.0123", min_size=1, max_size=8)


@st.composite
def states(draw: st.DrawFn) -> State:
    return State(
        family=draw(st.sampled_from(FAMILIES)),
        arch=draw(word),
        language=draw(st.sampled_from(Language)),
        bottleneck=draw(st.sampled_from(Bottleneck)),
        fraction_of_bound=draw(st.none() | st.floats(0, 1)),
        log2_speedup=draw(st.none() | logarithm),
        log2_progress=draw(logarithm),
        runtime_us=draw(st.none() | positive),
        last_outcome=draw(st.none() | st.sampled_from(Outcome)),
        step=draw(st.integers(0, 1000)),
        stagnation=draw(st.integers(0, 1000)),
        features=draw(st.frozensets(word, max_size=5)),
        history=tuple(draw(st.lists(word, max_size=5))),
    )


@st.composite
def transitions(draw: st.DrawFn) -> Transition:
    family = draw(st.sampled_from(FAMILIES))
    return Transition(
        transition_id=draw(st.uuids()).hex,
        source=draw(text),
        trajectory_id=draw(text),
        task=TaskRef(task_id=f"s/{draw(word)}", suite="s", family=family, level=draw(st.none() | st.integers(1, 4))),
        device=draw(text),
        llm=draw(text),
        state=draw(states()),
        direction_id=draw(word),
        strategy_id=draw(word),
        plan=draw(text),
        outcome=draw(st.sampled_from(Outcome)),
        reward=draw(st.none() | finite),
        expected=draw(st.none() | finite),
        weight=draw(st.floats(0, 1)),
        flags=draw(st.frozensets(st.sampled_from(TrustFlag))),
        siblings=draw(text),
        parent_sha256=draw(word),
        child_sha256=draw(word),
        parent_us=draw(st.none() | positive),
        child_us=draw(st.none() | positive),
        error=draw(text),
        choice_probability=draw(st.none() | st.floats(0, 1)),
        provenance=Provenance(
            format=draw(word),
            importer_version=1,
            file=draw(text),
            file_sha256=draw(word),
            line=draw(st.none() | st.just(7)),
        ),
        kernel=draw(text),
        reference=draw(text),
    )


many = st.lists(transitions(), max_size=6, unique_by=lambda item: item.transition_id)


@settings(max_examples=20)
@given(many)
def test_transitions_survive_the_table(items: list[Transition]) -> None:
    assert list(transitions_of(transition_rows(items))) == sorted(items, key=lambda item: item.transition_id)


@settings(max_examples=15)
@given(many, st.randoms(use_true_random=False))
def test_the_hash_knows_content_alone(items: list[Transition], rng: object) -> None:
    whole = transition_rows(items)
    mixed = list(items)
    rng.shuffle(mixed)  # type: ignore[attr-defined]
    parts = [transition_rows([item]) for item in mixed]
    chunked = canonical(pa.concat_tables(parts)) if parts else whole
    assert content_hash(chunked.replace_schema_metadata({"b": "1", "a": "2"})) == content_hash(whole)


@settings(max_examples=15)
@given(many.filter(bool))
def test_the_hash_sees_a_changed_value(items: list[Transition]) -> None:
    table = transition_rows(items)
    weights = pa.array([value + 1.0 for value in table["weight"].to_pylist()])
    changed = table.set_column(table.schema.get_field_index("weight"), table.schema.field("weight"), weights)
    assert content_hash(changed) != content_hash(table)


def test_joined_tables_are_those_of_the_joined_records(transitions: list[Transition]) -> None:
    parts = [transition_rows(transitions[:100]), transition_rows(transitions[100:])]
    assert canonical(pa.concat_tables(parts)).equals(transition_rows(transitions))


def test_list_children_are_named_element_and_required() -> None:
    def lists(kind: pa.DataType) -> list[pa.Field]:
        if pa.types.is_list(kind):
            return [kind.value_field, *lists(kind.value_type)]
        return [found for i in range(kind.num_fields) for found in lists(kind.field(i).type)]

    children = [
        child for schema in (DIRECTIONS, STRATEGIES, TRANSITIONS) for field in schema for child in lists(field.type)
    ]
    assert children
    assert all(child.name == "element" and not child.nullable for child in children)
