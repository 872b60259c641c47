"""Writes statements.jsonl, the default probe set: short true and false statements, as studies of truth probes use them.

Run it as `python examples/make_statements.py`; the same bytes come out every time. Each line has `id`, `text`, `label`
(whether the text is true) and `topic`. A false fact takes its wrong part from another true one, and every fact is also
denied, so that each city, country, word or symbol occurs as often in true statements as in false ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

TARGET = Path(__file__).with_name("statements.jsonl")

# Two cities of each country. Left out: cities with a well-known namesake in another country of this table.
CITIES = """
Japan: Osaka, Sapporo; China: Shanghai, Chengdu; India: Mumbai, Kolkata; Pakistan: Karachi, Lahore;
Bangladesh: Dhaka, Chittagong; Nepal: Kathmandu, Pokhara; Sri Lanka: Colombo, Kandy; Thailand: Bangkok, Chiang Mai;
Vietnam: Hanoi, Da Nang; Cambodia: Phnom Penh, Siem Reap; Indonesia: Jakarta, Surabaya;
Malaysia: Kuala Lumpur, Ipoh; South Korea: Seoul, Busan; Mongolia: Ulaanbaatar, Erdenet; Kazakhstan: Almaty, Astana;
Uzbekistan: Tashkent, Samarkand; Iran: Tehran, Isfahan; Iraq: Baghdad, Basra; Saudi Arabia: Riyadh, Jeddah;
Turkey: Istanbul, Ankara; Egypt: Cairo, Luxor; Morocco: Casablanca, Marrakesh; Algeria: Algiers, Oran;
Tunisia: Tunis, Sfax; Ethiopia: Addis Ababa, Gondar; Kenya: Nairobi, Mombasa; Tanzania: Dar es Salaam, Mwanza;
Uganda: Kampala, Entebbe; Ghana: Accra, Kumasi; Nigeria: Lagos, Kano; Senegal: Dakar, Ziguinchor;
South Africa: Johannesburg, Durban; Zambia: Lusaka, Ndola; Zimbabwe: Harare, Bulawayo; Mozambique: Maputo, Beira;
Angola: Luanda, Huambo; Russia: Novosibirsk, Vladivostok; Ukraine: Kyiv, Kharkiv; Poland: Warsaw, Krakow;
Hungary: Budapest, Debrecen; Romania: Bucharest, Cluj-Napoca; Bulgaria: Sofia, Plovdiv;
Greece: Thessaloniki, Heraklion; Italy: Milan, Turin; France: Lyon, Marseille; Germany: Munich, Stuttgart;
Austria: Vienna, Salzburg; Switzerland: Zurich, Geneva; Belgium: Brussels, Antwerp; Denmark: Copenhagen, Aarhus;
Norway: Oslo, Trondheim; Sweden: Gothenburg, Uppsala; Finland: Helsinki, Tampere; Iceland: Reykjavik, Akureyri;
Portugal: Lisbon, Funchal; Ireland: Galway, Limerick; Peru: Lima, Arequipa; Brazil: Rio de Janeiro, Curitiba;
Argentina: Buenos Aires, Ushuaia; Ecuador: Quito, Guayaquil
"""

SYMBOLS = """
hydrogen H, helium He, lithium Li, beryllium Be, boron B, carbon C, nitrogen N, oxygen O, fluorine F, neon Ne,
sodium Na, magnesium Mg, aluminium Al, silicon Si, phosphorus P, sulfur S, chlorine Cl, argon Ar, potassium K,
calcium Ca, scandium Sc, titanium Ti, vanadium V, chromium Cr, manganese Mn, iron Fe, cobalt Co, nickel Ni, copper Cu,
zinc Zn, gallium Ga, germanium Ge, arsenic As, selenium Se, bromine Br, krypton Kr, rubidium Rb, strontium Sr,
zirconium Zr, silver Ag, cadmium Cd, tin Sn, antimony Sb, iodine I, xenon Xe, caesium Cs, barium Ba, tungsten W,
platinum Pt, gold Au, mercury Hg, lead Pb, bismuth Bi, radon Rn, radium Ra, uranium U
"""

SPANISH = """
gato cat, perro dog, caballo horse, vaca cow, oveja sheep, pájaro bird, pez fish, abeja bee, araña spider, lobo wolf,
zorro fox, conejo rabbit, casa house, puerta door, ventana window, mesa table, silla chair, cama bed, cocina kitchen,
techo roof, libro book, lápiz pencil, papel paper, escuela school, maestro teacher, camisa shirt, zapato shoe,
sombrero hat, vestido dress, bolsillo pocket, agua water, leche milk, vino wine, cerveza beer, pan bread, queso cheese,
huevo egg, carne meat, sal salt, azúcar sugar, manzana apple, naranja orange, uva grape, fresa strawberry,
cebolla onion, ajo garlic, árbol tree, flor flower, hierba grass, bosque forest, río river, lago lake, montaña mountain,
mar sea, playa beach, isla island, cielo sky, sol sun, luna moon, estrella star, nube cloud, lluvia rain, nieve snow,
viento wind, fuego fire, piedra stone, arena sand, hierro iron, oro gold, plata silver, mano hand, pie foot,
cabeza head, ojo eye, oreja ear, nariz nose, boca mouth, diente tooth, rodilla knee, corazón heart, sangre blood,
hueso bone, hermano brother, hija daughter, abuelo grandfather, tía aunt, amigo friend, vecino neighbour, rey king,
reina queen, soldado soldier, médico doctor, barco ship, avión aeroplane, coche car, camino road, puente bridge,
ciudad city, iglesia church, llave key, cuchillo knife, cuchara spoon, espejo mirror, reloj clock, campana bell,
lunes Monday, enero January, invierno winter, verano summer, noche night
"""

FRENCH = """
chat cat, chien dog, cheval horse, vache cow, mouton sheep, oiseau bird, poisson fish, abeille bee, loup wolf,
renard fox, lapin rabbit, maison house, porte door, fenêtre window, chaise chair, lit bed, toit roof, livre book,
crayon pencil, école school, chemise shirt, chaussure shoe, chapeau hat, poche pocket, eau water, lait milk, vin wine,
bière beer, pain bread, fromage cheese, œuf egg, viande meat, sel salt, sucre sugar, pomme apple, raisin grape,
fraise strawberry, oignon onion, ail garlic, arbre tree, fleur flower, herbe grass, forêt forest, rivière river,
lac lake, montagne mountain, mer sea, plage beach, île island, ciel sky, soleil sun, lune moon, étoile star,
nuage cloud, pluie rain, neige snow, vent wind, feu fire, pierre stone, sable sand, fer iron, or gold, main hand,
pied foot, tête head, œil eye, oreille ear, nez nose, bouche mouth, dent tooth, genou knee, cœur heart, sang blood,
os bone, frère brother, ami friend, voisin neighbour, roi king, reine queen, bateau ship, voiture car, pont bridge,
ville city, église church, clé key, couteau knife, cuillère spoon, miroir mirror, cloche bell, lundi Monday,
janvier January, hiver winter, été summer, nuit night
"""

ANIMALS = """
mammal: horse, dolphin, whale, bat, elephant, kangaroo, wolf, rabbit, otter, giraffe, mouse, camel;
bird: sparrow, penguin, eagle, ostrich, parrot, owl, flamingo, duck, raven, pelican, swan, robin;
fish: salmon, trout, tuna, shark, herring, cod, carp, pike, eel, anchovy, mackerel, stingray;
insect: ant, bee, beetle, butterfly, mosquito, dragonfly, wasp, grasshopper, termite, cicada, moth, ladybird;
reptile: crocodile, tortoise, iguana, cobra, gecko, chameleon, python, alligator, viper, skink, monitor lizard, turtle
"""

NUMBERS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen twenty thirty forty fifty sixty seventy eighty ninety
"""

Statement = tuple[str, bool]
"""Text, and whether it is true."""


def main() -> None:
    TARGET.write_bytes(content())


def content() -> bytes:
    """The whole file."""
    lines = []
    for topic, statements in topics():
        for number, (text, label) in enumerate(statements):
            record = {"id": f"{topic}-{number:04d}", "text": text, "label": label, "topic": topic}
            lines.append(json.dumps(record, ensure_ascii=False) + "\n")
    return "".join(lines).encode()


def topics() -> Iterator[tuple[str, Iterator[Statement]]]:
    yield (
        "cities",
        _affirmed_and_denied(_interleaved(CITIES), "The city of {} is in {}.", "The city of {} is not in {}."),
    )
    symbol_of = "The chemical symbol of {} is"
    yield "elements", _affirmed_and_denied(_pairs(SYMBOLS), f"{symbol_of} {{}}.", f"{symbol_of} not {{}}.")
    for language, words in (("Spanish", SPANISH), ("French", FRENCH)):
        affirm = f"The {language} word '{{}}' means '{{}}'."
        deny = f"The {language} word '{{}}' does not mean '{{}}'."
        yield language.lower(), _affirmed_and_denied(_pairs(words), affirm, deny)
    animals = [(_with_article(animal), _with_article(kind)) for animal, kind in _interleaved(ANIMALS)]
    yield "animals", _affirmed_and_denied(animals, "{} is {}.", "{} is not {}.", shift=1)
    yield "comparisons", _comparisons(in_words)
    yield "comparisons-in-digits", _comparisons(str)
    yield "sums", _sums()


def _affirmed_and_denied(
    facts: list[tuple[str, str]], affirm: str, deny: str, *, shift: int = 17
) -> Iterator[Statement]:
    """Each fact, its denial, the same with the value of the fact `shift` places on, and the denial of that."""
    for index, (subject, value) in enumerate(facts):
        other = facts[(index + shift) % len(facts)][1]
        if other == value:
            raise ValueError(f"{subject}: the wrong value is the right one; choose another shift")
        for template, right in ((affirm, True), (deny, False)):
            yield _sentence(template.format(subject, value)), right
            yield _sentence(template.format(subject, other)), not right


def _comparisons(written: Callable[[int], str]) -> Iterator[Statement]:
    for first in range(21, 100):
        for second in (first - 11, first - 4, first + 5, first + 12):
            if second < 100:
                a, b = written(first), written(second)
                yield _sentence(f"{a} is larger than {b}."), first > second
                yield _sentence(f"{a} is smaller than {b}."), first < second


def _sums() -> Iterator[Statement]:
    errors = (1, -1, 2, -2, 10, -10)
    for first in range(3, 48):
        for step in range(4):
            second = 11 + (first * 7 + step * 13) % 40
            right = first + second
            wrong = right + errors[(first + step) % len(errors)]
            for total in (right, wrong):
                yield _sentence(f"{in_words(first)} plus {in_words(second)} is {in_words(total)}."), total == right


def in_words(number: int) -> str:
    """0 to 119."""
    words = NUMBERS.split()
    if number < 20:
        return words[number]
    if number >= 100:
        return "one hundred" + (f" and {in_words(number - 100)}" if number > 100 else "")
    ten, one = divmod(number, 10)
    return words[18 + ten] + (f"-{words[one]}" if one else "")


def _interleaved(table: str) -> list[tuple[str, str]]:
    """(member, group) of `group: member, member; ...`: every group's first member, then every group's second."""
    groups = [entry.strip().split(": ") for entry in " ".join(table.split()).split(";")]
    members = [[(member.strip(), group) for member in rest.split(",")] for group, rest in groups]
    return [pair for row in zip(*members, strict=True) for pair in row]


def _pairs(table: str) -> list[tuple[str, str]]:
    first_and_second = (entry.split() for entry in " ".join(table.split()).split(","))
    return [(first, second) for first, second in first_and_second]


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


if __name__ == "__main__":
    main()
