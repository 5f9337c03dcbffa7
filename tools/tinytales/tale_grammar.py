"""The story grammar behind the bundled checkpoint: seeded, endless, readable short tales.

A tale is a quest with a cast. The quest fixes the plot (an opening, a want, a turn, an ending that answers the want);
between the want and the turn stand any number of episodes, drawn without repetition, so that lengths spread from about
30 to 600 tokens with a long tail. The text is written in a small notation:

    [a|b|c]     one of the alternatives, which may hold more of the notation
    <rule>      a random line of RULES["rule"]
    {h.he}      a slot: h the hero, f the friend, t the thing, p the home; any other word is a value of this tale

Every named character is introduced once as "<kind> named <Name>".
"""

import random
import re
from collections.abc import Callable
from functools import cache, cached_property

from tale_openings import OPENINGS, PLOT_DID, SHAPES

# --- The cast -------------------------------------------------------------------------------------------------------

# A friend's name is one of FRIENDS, so that a model need not remember which of two names was the hero's. A hero may bear
# such a name as well, now and then, and where both are named in one breath the friend may have any.
NAMES = {
    "she": (
        "Mara Lily Nora Elsie Ruby Clara Ivy Hazel Daisy Wren Poppy Luna Ada Tilda Willow Greta Fern Maple Anna Mira Emma"
        " Olivia Sophie Rosa Alice Julia Sara Eva Mia Zoe Lena Hanna Martha Ella Lucy Grace Flora Molly Nina Maya Amy Kate"
        " Sofia Elena Laura Naomi Amira Leila Fatima Aisha Yuki Carmen Ingrid Astrid Nadia Irina Vera Helen Diana Ruth"
    ).split(),
    "he": (
        "Tom Otto Finn Jasper Milo Hugo Sam Felix Toby Oscar Leo Barnaby Jack Emil Rowan Kit Bruno Theo Max Paul Peter Ben"
        " Henry George Arthur Oliver Noah Jonas Anton Karl Ivan Marco Pedro Ali Omar Luke Simon David Daniel Jacob Adam"
        " Carlos Diego Luis Hassan Ibrahim Ravi Arjun Hiro Erik Sven Igor Boris Martin Thomas Robert Alex Philip Lars"
    ).split(),
}
FRIENDS = {
    "she": "Betty Emily Charlotte Heidi Frida Edith Lotte Marie Rose Tara Penny Iris".split(),
    "he": "Charlie William James John Fritz Gustav Walter Ralph Edgar Albert Rufus Basil Cedric".split(),
}
FRIENDS_AS_HEROES = 0.04
ANIMALS = (
    "fox rabbit mouse hedgehog bear squirrel badger otter duck frog kitten puppy lamb goat mole beaver cat dog pig hen"
    " sparrow turtle snail pony wolf donkey penguin lion tiger monkey dragon elephant robot giant"
).split()
PRONOUN_WORDS = "he him his she her hers it they them their".split()
KIN = "mother father grandmother grandfather aunt uncle teacher sisters brothers".split()
CHILD = {"she": "girl girl girl woman princess queen".split(), "he": "boy boy boy man prince king".split()}
TRAITS = (
    "little young small brave curious cheerful shy gentle clever quiet merry careful old tired lonely lazy proud hungry"
    " wise sleepy tiny grumpy kind"
).split()

# Words that no reader has met: the parts that invented_word puts together.
STARTS = "b br ch d dr f fl g gr h j k kl l m n p pr qu r s sh st t tr v w y z".split()
VOWELS = "a e i o u a e i o u ai ee oo ou ia".split()
ENDS = ["", "", "", "", *"n r l s k t m x nd ck".split()]
# How often (of 1) a name, a kind or a thing is an invented word in the tales that are written with them.
INVENTED = {"name": 0.35, "friend": 0.15, "kind": 0.1, "thing": 0.06}


def invented_word(rng: random.Random, what: str) -> str:
    """A word of two or three syllables that means nothing, such as "florpia", for what INVENTED lists."""
    syllables = [rng.choice(STARTS) + rng.choice(VOWELS) + rng.choice(ENDS) for _ in range(rng.choice([2, 2, 3]))]
    return "".join(syllables).capitalize() if what in ("name", "friend") else "".join(syllables)


class Character:
    """A named character with the pronouns that the templates ask for."""

    def __init__(self, name: str, he: str, kind: str, trait: str):
        self.name, self.he, self.kind, self.trait = name, he, kind, trait
        self.his, self.him = {"she": ("her", "her"), "he": ("his", "him")}[he]
        self.He, self.His = he.capitalize(), self.his.capitalize()
        self.a, self.A = f"a {trait} {kind}", f"A {trait} {kind}"

    def __str__(self) -> str:
        return self.name


class Thing:
    """A thing that a tale is about: "a red kite" at first sight, "the kite" from then on."""

    def __init__(self, adjective: str, noun: str):
        self.noun = noun
        self.a = f"{'an' if adjective[0] in 'aeiou' else 'a'} {adjective} {noun}"
        self.A = self.a[0].upper() + self.a[1:]

    def __str__(self) -> str:
        return f"the {self.noun}"


class Place:
    """Where a tale begins: "in a valley full of flowers" at first sight, "the valley" from then on."""

    def __init__(self, at: str, short: str):
        self.at, self.short = at, short
        self.At = at[0].upper() + at[1:]

    def __str__(self) -> str:
        return self.short


PLACES = [
    ("at the edge of a quiet forest", "the forest"), ("in a small village by the sea", "the village"),
    ("on a farm under a round hill", "the farm"), ("in a town with crooked streets", "the town"),
    ("at the foot of a tall mountain", "the mountain"), ("in a valley full of flowers", "the valley"),
    ("beside a deep blue lake", "the lake"), ("on a small green island", "the island"),
    ("behind an old stone mill", "the mill"), ("in a garden with a high wall", "the garden"),
    ("in a cottage with a red door", "the cottage"), ("next to a slow brown river", "the river"),
    ("under the roots of a great oak", "the oak"), ("near a windy harbor", "the harbor"),
]  # fmt: skip
THINGS = [
    (a, noun)
    for noun, adjectives in {
        "kite": "red yellow paper", "bell": "silver tiny brass", "lantern": "green small old",
        "button": "golden blue shiny", "drum": "wooden round small", "scarf": "warm striped long",
        "key": "golden rusty tiny", "whistle": "tin wooden silver", "hat": "blue funny tall",
        "basket": "round little willow", "book": "thick green picture", "boat": "toy wooden paper",
        "feather": "white long blue", "shell": "pink round sea", "marble": "glass green lucky",
        "spoon": "wooden silver tiny", "blanket": "soft patched yellow", "compass": "brass old small",
    }.items()
    for a in adjectives.split()
]  # fmt: skip

# --- The rules ------------------------------------------------------------------------------------------------------

RULES = {
    "sky": ["bright", "cold", "windy", "rainy", "golden", "misty", "sunny", "quiet", "dark", "stormy", "warm", "clear"],
    "habit": [
        "Every [morning|evening], {h} [swept the doorstep|watered the beans|fed the birds|listened to the wind].",
        "{h} loved [warm bread|long walks|old songs|rainy days|bright stars] more than anything.",
        "All the neighbors knew {h}, because {h.he} [always said good morning|never walked past a friend"
        "|sang on the way home|could not sit still].",
        "{h} was not very [big|strong|tall], but {h.he} had [a kind heart|sharp eyes|good ideas].",
    ],
    "friend": [
        "{h.His} best friend was a {f.kind} named {f}.",
        "{h} had a good friend, a {f.trait} {f.kind} named {f}.",
        "Next door lived a {f.trait} {f.kind} named {f}, and the two were always together.",
        "{h} shared everything with a {f.kind} named {f}.",
    ],
    "friend_known": [
        "The two were the best of friends.",
        "They had always liked each other.",
        "They told each other everything.",
        "Nobody had ever seen the one without the other.",
    ],
    "come_along": [
        '"I will come with you," said {f}. "Two are better than one."',
        '"You should not go alone," said {f}, and {f.he} put on {f.his} [coat|boots|scarf].',
        '"Wait for me!" called {f}, and {f.he} came running.',
        '"May I come too?" asked {f}. "Of course," said {h}.',
    ],
    "set_out": [
        "So they packed [some bread and cheese|a bag of apples|two pears and a blanket] and set out.",
        "They left [before the sun was up|right after breakfast|that very hour].",
        "Together they left {place} behind and followed the [long|dusty|winding] road.",
        "They took [a map|a rope|a lamp] and went off, side by side.",
    ],
    "go_on": [
        "Then they went on.",
        "And so they walked on, happier than before.",
        "After that, the road felt shorter.",
        "They smiled at each other and went on.",
        '"Come on," said {h}, "we are not there yet."',
        '"That was not so bad," said {f}.',
        "They were tired now, but they did not stop.",
        "",
    ],
    "cheer": [
        '"We did it!" cried {f}.',
        '"Hooray!" shouted {h}.',
        "{h} laughed out loud.",
        "{f} clapped and danced.",
        "The two friends hugged.",
        '"I knew it," said {f}. "I knew we would do it."',
    ],
    "ending": [
        "That night, {h} slept well.",
        "And from that day on, {h} and {f} were never far apart.",
        "They talked about it for many years.",
        "And that is how the story ends.",
        "{h} looked up at the stars and was happy.",
        "And they both lived happily ever after.",
        "All the neighbors heard about it, and everyone was glad.",
        "The end.",
        "When the moon came up, the two friends were already asleep.",
    ],
    "moral": [
        "{h} had learned that [a friend makes every road shorter|it is good to ask for help|small steps go far].",
        "For a kind word [costs nothing and warms everyone|can open any door].",
        "And {h} never forgot that [the best things are shared|brave does not mean alone|patience wins in the end].",
    ],
    "animal": [
        "an old tortoise",
        "a grey heron",
        "a tiny wren",
        "a fat toad",
        "a snow-white goose",
        "a sleepy owl",
        "a brown hare",
        "a thin crow",
        "a busy beetle",
        "a red squirrel",
    ],
    "hidden": [
        "under a bush",
        "behind a big stone",
        "in the tall grass",
        "on a low branch",
        "inside a hollow tree",
        "at the bottom of a dry well",
        "in an empty nest",
        "beside the old fence",
    ],
    # Micro tales: a whole story in three sentences.
    "micro": [
        "<opening> {h.He} found {t.a} <hidden> and gave it to {h.his} [mother|father|grandmother]. <micro_end>",
        "<opening> One day {h.he} lost {t.a}, looked everywhere, and found it <hidden>. <micro_end>",
        "<opening> {h.He} wanted to [stay up all night|count all the stars|hear the first bird sing], but {h.he} fell"
        " asleep [by the fire|in a chair|under a tree]. <micro_end>",
        "<opening> {h.He} planted a [bean|seed|nut] and waited. [After a week|In the spring|After the rain], there was"
        " a [green leaf|tall flower|tiny tree]. <micro_end>",
        "<opening> One day it began to snow. {h} ran outside and made a snowman with {t.a}. <micro_end>",
    ],
    "micro_end": [
        "{h} was very happy.",
        "The end.",
        "And {h} smiled all day long.",
        "{h} laughed and went home.",
        "That night, {h} slept well.",
        "And that was that.",
    ],
}

# --- Episodes: what happens on the way ------------------------------------------------------------------------------

ON_THE_ROAD = [
    'Soon they came to a [wide|cold|fast] river, and there was no bridge. "How will we get across?" asked {f}. {h}'
    " looked around and saw [a row of flat stones|a fallen tree]. Step by step, they crossed over, and only {f}'s"
    " [feet|ears|nose] got wet. <go_on>",
    'Soon they came to a [deep|quiet|green] lake. An old boat lay in the reeds. "Can you row?" asked {h}. "I can'
    ' learn," said {f}. They rowed [in circles at first|slowly at first], and then straight to the other side. <go_on>',
    "Then dark clouds came, and it began to rain. They ran and hid [under a bridge|in a barn|in a dry cave]. {f} told a"
    " [funny|long|silly] story until the sun came out again. <go_on>",
    '[A little later|Around noon], they met <animal> with a thorn in its foot. "Please help me," it said. {h} held'
    " still and pulled the thorn out. "
    '"Thank you," it said. "[Keep to the left at the old oak|Do not drink from the black pond'
    '|Follow the yellow flowers]." <go_on>',
    "By evening they were hungry. {h} had only one [apple|bun|piece of cheese] left, so {h.he} broke it in two. "
    '"[The bigger half is for you|Half for you and half for me]," {h.he} said. It was a small supper, but it tasted'
    " [wonderful|like a feast]. <go_on>",
    'Night fell, and the woods were very dark. "I am afraid," whispered {f}. {h} took {f.his} hand and pointed up. The'
    " sky was full of stars, and [the biggest one showed them the way|soon neither of them was afraid]. <go_on>",
    "The road went up a steep hill. {f} wanted to [turn back|sit down|give up], but {h} said, \"[Ten more steps|Just to"
    ' that tree|One more song]." They sang as they climbed, and suddenly they stood at the top. <go_on>',
    'The path split in two. "Left or right?" asked {h}. {f} listened. From the [left|right] came the sound of'
    " [bells|water|birds], so that was the way they took. <go_on>",
    "A thick fog rolled in, and they could not see their own feet. {h} tied [a rope|a scarf] around both of them. "
    '"Now we cannot lose each other," {h.he} said. When the fog lifted, they were still together. <go_on>',
    "A big bear was sleeping in the middle of the path. They walked past on the tips of their toes. A twig"
    " [snapped|cracked]. The bear opened one eye, [yawned|sighed], and went back to sleep. <go_on>",
    'At a bridge stood a goat with a long beard. "Nobody crosses without a [song|joke|dance]," it said. So {f}'
    " [gave it the best one {f.he} knew|tried, and the goat laughed until it cried]. \"You may pass,\" said the goat."
    " <go_on>",
    "An owl sat on a [post|gate|low branch]. \"Answer my riddle,\" it said. \"<riddle> {h} thought for a long time."
    ' "{answer}!" {h.he} said at last. "Right," said the owl, and it let them pass. <go_on>',
    'They met an old [woman|man|farmer] whose cart was stuck in the mud. "Push!" cried {h}, and they pushed with all'
    " their might. The cart came free with a loud pop. They got [two plums|a honey cake|a jar of jam] as a reward."
    " <go_on>",
    'In a field they heard a small cry. <Animal> had fallen into a hole. {h} let down [a branch|a rope], and {f} pulled.'
    ' "You saved me," it said. "I will not forget it." <go_on>',
    "The wind blew so hard that it took {f}'s hat. It flew over [a fence|a pond|a haystack], and they ran after it,"
    " laughing. In the end it landed on [a scarecrow|a cow|a sleeping dog]. <go_on>",
    '{h} called "Hello!" into a deep valley, and the valley called "Hello!" back. "Who is that?" asked {f}. "[Only an'
    ' echo|Only us, a little later]," said {h}. They called [funny words|their names] until they had no voice left. <go_on>',
    "They came to a market full of [lights|colors|noise]. {f} almost got lost between the [cheeses|carpets|drums], but"
    " {h} found {f.him} by [the sound of {f.his} laugh|climbing on a barrel]. <go_on>",
    "A gate blocked the way, and it was locked. {f} pushed, and {h} pulled, but nothing moved. Then {h} simply lifted"
    ' the latch. They looked at each other and [laughed|giggled]. "[Sometimes it is easy|That was silly]," said {f}.'
    " <go_on>",
    "{h} stepped on a stone and hurt {h.his} foot. {f} washed it with cool water and wrapped it in a [leaf|cloth]. \"Is"
    ' it better?" asked {f}. "Much better," said {h}. <go_on>',
    "They stopped to watch a line of ants. One ant carried a crumb that was much too big. {f} gave it a little push, and"
    " all the ants [cheered|waved], or so it seemed. <go_on>",
    'They met <animal> that had lost its way. "Which way is [the pond|home|the north]?" it asked. {h} showed it the'
    " [sun|moss on the trees|river], and it thanked them and hurried off. <go_on>",
    "At the inn, the soup was [too hot|too salty|very thin], but the fire was warm. They slept in [the hay|one big bed]"
    " and dreamed of [home|the sea|pancakes]. In the morning, the road was waiting. <go_on>",
]  # fmt: skip

AT_PRACTICE = [
    "On the [first|next] day, {h} tried again. {h.He} [counted to three|closed {h.his} eyes|held {h.his} breath] and"
    ' tried, and it went wrong. "Again," said {f}. <practice>',
    'Then it rained, and {h} wanted to stay in bed. "[Rain is only water|We can try under the roof]," said {f}.'
    " <practice>",
    'Some of the others laughed. {h}\'s ears turned red. "They could not do it at first either," said {f}. <practice>',
    'In the evening, {h} sat down and sighed. "I will never learn it," {h.he} said. "You will," said {f}, "because you'
    ' have not stopped." <practice>',
    '{h} asked <animal> for advice. "[Do it slowly|Do not look down|Breathe in, breathe out]," it said. {h} nodded and'
    " went back to work. <practice>",
    "{h} watched every little move when {f} showed it once more, very slowly. Then they did it together. <practice>",
    "That night, {h} dreamed about it. In the dream it was easy. In the morning, {h.he} [jumped|hopped] out of bed and"
    " ran outside. <practice>",
    "{h} fell, got up, and fell again. There was [mud on {h.his} nose|grass in {h.his} hair]. {f} began to laugh, and"
    " then {h} laughed too. <practice>",
]
RULES |= OPENINGS
RULES["practice"] = [
    "It was a little better this time.", "It still did not work.", "This time it almost worked.",
    "It was closer this time.", "Slowly, it got easier.",
]  # fmt: skip

RIDDLES = [
    ("What has hands but cannot clap?", "A clock"), ("What gets wetter the more it dries?", "A towel"),
    ("What goes up when the rain comes down?", "An umbrella"), ("What must be broken before you use it?", "An egg"),
    ("What has teeth but cannot bite?", "A comb"), ("What has an eye but cannot see?", "A needle"),
    ("What runs all day but never gets tired?", "A river"), ("What is full of holes but holds water?", "A sponge"),
    ("What has a neck but no head?", "A bottle"), ("What can you catch but never throw?", "A cold"),
]  # fmt: skip

# --- Quests: (values drawn for the tale, want, episodes, turn and answer) -------------------------------------------

QUESTS = [
    {
        "name": "lost thing",
        "want": [
            "{h}'s greatest treasure was {t.a}. [One day|One <sky> morning|After a storm], it was gone. {h} looked under"
            " the bed and behind the door, but {t} was not there. <friend> \"I have to find it,\" said {h}. <come_along>"
            " <set_out>",
            "{h} had {t.a}, a gift from {h.his} [grandmother|grandfather|father]. But one day {h.he} could not find it"
            " anywhere. {h} [began to cry|felt very sad]. <friend> \"Let us look for it,\" said {f}. <set_out>",
        ],
        "episodes": ON_THE_ROAD,
        "turn": [
            "At last, {h} stopped. Something [shone|lay] <hidden>. It was {t}! {h} picked it up and held it tight. <cheer>",
            "Then {f} pointed. There, <hidden>, was {t}. It was [dusty|wet|a little dirty], but it was not broken. <cheer>",
            "And who had {t}? A magpie! \"I only borrowed it,\" said the magpie, and it gave {t} back. <cheer>",
        ],
        "answer": ["{h} put {t} in a safe place and said thank you to {f}.",
                   "On the way home, {h} did not let go of {t} once.",
                   "Back home, {h} let {f} have {t} for a whole day."],
    },
    {
        "name": "see it",
        "goal": [("the sea", "It was bigger than the sky, and it never stopped moving."),
                 ("the old lighthouse", "It was tall and white, and its light went round and round."),
                 ("the waterfall", "It roared, and a small rainbow stood above it."),
                 ("the great city", "It had a thousand windows, and a lamp in every one."),
                 ("the place where the river begins", "It was only a small spring between two stones."),
                 ("the first snow on the mountain", "It lay there, clean and blue, without one footprint."),
                 ("the oldest tree in the world", "Ten friends could not have put their arms around it."),
                 ("the night market", "It smelled of sugar and smoke, and there was music everywhere.")],
        "want": [
            "All {h.his} life, {h} had wanted to see {goal}. <friend> \"Is it far?\" asked {f}. \"Very far,\" said {h}."
            " <come_along> <set_out>",
            "One evening, {h} heard a traveler talk about {goal}. {h.He} could not stop thinking about it. <friend>"
            " \"I want to see it with my own eyes,\" said {h}. <come_along> <set_out>",
        ],
        "episodes": ON_THE_ROAD,
        "turn": ["And then, at last, there it was: {goal}. {sight} {h} and {f} [stood still|said nothing for a while].",
                 "When they came around the last bend, they saw {goal}. {sight} <cheer>"],
        "answer": ["\"It was worth every step,\" said {h}.", "They stayed until the evening and then turned home.",
                   "\"Let us come back one day,\" said {f}, and {h} nodded.",
                   "{h} took a small stone home to remember it by."],
    },
    {
        "name": "gift",
        "who": [("grandmother",), ("grandfather",), ("aunt",), ("uncle",), ("teacher",)],
        "want": [
            "It was almost the birthday of {h}'s {who}. \"I will bring {t.a} as a gift,\" said {h}, \"but the way is long.\""
            " <friend> <come_along> <set_out>",
            "{h}'s {who} was [ill|lonely] and lived far away. {h} made {t.a} to cheer up the poor {who}. <friend>"
            " <come_along> <set_out>",
        ],
        "episodes": ON_THE_ROAD,
        "turn": ["At last they knocked at the door of the {who}. \"What a surprise!\" cried the {who}, and opened the gift."
                 " \"{t.A}! I have always wanted one.\" <cheer>",
                 "When they came to the house, {h} held out {t}. The {who} looked at it for a long time. \"It is the best"
                 " gift of all,\" said the {who}, \"because you carried it so far.\""],
        "answer": ["Then there was [cake|soup|hot milk] for everyone.", "They stayed for supper and sang until it was late.",
                   "And {t} got the best place in the house."],
    },
    {
        "name": "learn",
        "skill": [("swim", "{h} let go of the bank and did not sink. {h.He} was swimming!"),
                  ("whistle", "A clear, high note flew out over the roofs. {h.He} was whistling!"),
                  ("fly a kite", "The kite climbed up and up and stayed there. It was flying!"),
                  ("skate", "{h.His} feet did not slip. {h.He} was gliding over the ice!"),
                  ("bake bread", "The bread was round and golden, and it smelled wonderful."),
                  ("climb the tall tree", "One branch, and one more, and {h.he} sat at the very top."),
                  ("ride a bicycle", "The wheels rolled straight ahead, and nobody was holding on!"),
                  ("dance", "Round and round {h.he} went, and everyone began to clap."),
                  ("play the fiddle", "There was no squeak at all, only a sweet, slow song.")],
        "want": [
            "{h} wanted to learn to {skill}. All the others could do it. <friend> \"Can you teach me?\" asked {h}. \"Of"
            " course,\" said {f}. \"But you must be patient.\"",
            "There was one thing {h} could not do. {h.He} could not {skill}. <friend> \"I will help you,\" said {f}, and they"
            " began that same [day|afternoon|morning].",
        ],
        "episodes": AT_PRACTICE,
        "turn": ["And then, on [Sunday|the last day of summer|a <sky> morning], it happened. {success} <cheer>",
                 "{h} tried one last time. {success} \"You did it!\" shouted {f}."],
        "answer": ["\"Now I can {skill},\" said {h}, \"and next time I will teach someone else.\"",
                   "{h} did it again and again until it was dark.",
                   "\"Thank you for not giving up on me,\" said {h} to {f}."],
    },
    {
        "name": "fear",
        "fear": [("the dark", "put out the lamp and counted to a hundred", "the dark was only the day with its eyes closed"),
                 ("thunder", "stood at the window while the storm went by", "thunder was only a big noise far away"),
                 ("deep water", "walked into the lake, one step and one more", "the water would carry {h.him}"),
                 ("the old cellar", "took a candle and went down all the stairs", "there was nothing there but apples"),
                 ("the big dog next door", "held out a hand and stood very still", "the dog only wanted to play"),
                 ("high places", "climbed the tower without looking back", "the world was beautiful from above")],
        "want": [
            "{h} was afraid of {fear}. {h.He} had never told anyone. <friend> One day, {h} told {f}. \"I was afraid of it"
            " too,\" said {f}. \"We can [practice|try] together.\"",
            "Nobody knew it, but {h} was afraid of {fear}. <friend> \"You do not have to be afraid alone,\" said {f}.",
        ],
        "episodes": AT_PRACTICE[1:7],
        "turn": ["That evening, {h} {deed}. {h.His} heart beat fast. But nothing bad happened, and {h} saw that {lesson}.",
                 "In the end, {h} took a deep breath and {deed}. And then {h.he} understood that {lesson}. <cheer>"],
        "answer": ["\"I am still a little afraid,\" said {h}, \"but I can do it.\"",
                   "From then on, {h} was not afraid of {fear}.", "\"You are the bravest one I know,\" said {f}."],
    },
    {
        "name": "quarrel",
        "want": [
            "<friend> One day, the two found {t.a} <hidden>. \"I saw it first!\" cried {h}. \"But I picked it up!\" cried {f}."
            " They pulled and pulled, and then they both went home angry.",
            "<friend> They did everything together, until {h} got {t.a}. {f} wanted it for one day, but {h} said no. {f} went"
            " away without a word.",
        ],
        "episodes": [
            "The next day, {h} [played alone|sat by the window|walked to the pond]. It was not much fun. There was nobody to"
            " [laugh with|race with|talk to].",
            "{h} met <animal>. \"Where is {f}?\" it asked. {h} did not know what to say and [looked at the ground|turned red].",
            "It began to rain, and {h} thought of {f}. {h.He} wondered if {f} was [lonely|sad|cold] too.",
            "{h} [put {t} in a box|looked at {t}]. It did not seem so [pretty|important] anymore.",
            "At supper, {h} was not hungry. \"What is wrong?\" asked {h.his} mother. \"Nothing,\" said {h}, but it was not true.",
            "Far away, {h} heard somebody laugh. For a moment it sounded like {f}, but it was only the [wind|river].",
            "{h} tried to write a letter, but {h.he} did not know how to begin, and the paper stayed white.",
        ],
        "turn": ["So {h} went to {f}'s door with {t}. \"I am sorry,\" {h.he} said. \"I am sorry too,\" said {f}.",
                 "In the morning, they met halfway. They both said \"I am sorry\" at the same time, and then they both laughed."],
        "answer": ["After that, {t} belonged to both of them.",
                   "They took turns: one day for {h}, and one day for {f}.",
                   "\"A friend is better than any {t.noun},\" said {h}."],
    },
    {
        "name": "bring home",
        "baby": [("duckling", "the pond", "The mother duck"), ("kitten", "the barn", "The mother cat"),
                 ("owlet", "the hollow tree", "The mother owl"), ("lamb", "the green meadow", "The mother sheep"),
                 ("bear cub", "the cave", "The mother bear"), ("little mouse", "the mill", "The mother mouse")],
        "want": [
            "<friend> One <sky> day, the two friends heard someone crying <hidden>. It was a lost {baby}. \"I want to go home to"
            " {nest},\" it sobbed. \"We will take you there,\" said {h}. <set_out>",
            "<friend> On the way to the well, they found a {baby} all alone. \"Do not cry,\" said {h}. \"Where do you live?\""
            " \"At {nest},\" it said. \"That is far,\" said {f}, \"but we will find it.\" <set_out>",
        ],
        "episodes": ON_THE_ROAD,
        "turn": ["When they reached {nest}, someone came running. {mother} had looked for the {baby} all day and all night."
                 " \"Thank you,\" she said, again and again.",
                 "\"There it is!\" cried the {baby}. And there was {nest}, and {mother_low} stood in front of it with open arms."
                 " <cheer>"],
        "answer": ["The {baby} waved until it could not see them anymore.", "They were invited to supper, and they ate a lot.",
                   "\"Come and visit us,\" said the {baby}, and they did."],
    },
    {
        "name": "trouble at home",
        "trouble": [("the well was dry", "a big stone had rolled into the spring", "the water ran again"),
                    ("the mill wheel stood still", "a beaver had built a dam across the stream", "the wheel turned again"),
                    ("the tower bell did not ring", "a swallow had built a nest inside it", "they hung up a second bell"),
                    ("the street lamps stayed dark", "the old lamplighter had lost the matches", "the lamps burned again"),
                    ("the bread tasted of nothing", "the baker had run out of salt", "the bread was good again"),
                    ("the bees were gone", "all the flowers in the far meadow were in bloom", "the bees came home again")],
        "want": [
            "One morning, {trouble}. Everyone was worried, and nobody knew why. \"I will find out,\" said {h}."
            " <friend> <come_along> <set_out>",
            "Then something strange happened: {trouble}. \"Somebody has to do something,\" said {h}, and {h.he} meant it."
            " <friend> <come_along> <set_out>",
        ],
        "episodes": ON_THE_ROAD,
        "turn": ["In the end, they found the reason: {reason}. {h} and {f} [worked until it was dark|called everyone to help],"
                 " and soon {fixed}.",
                 "{f} saw it first: {reason}. \"So that is why!\" said {h}. They knew what to do, and before night {fixed}."],
        "answer": ["All the neighbors thanked {h} and {f}.", "There was a feast with [music|cake|lanterns], and everyone danced.",
                   "\"It was nothing,\" said {h}, but {h.he} was very proud."],
    },
]  # fmt: skip

# The names that a drawn tuple of a quest's values gets in the templates.
VALUES = {
    "goal": ("goal", "sight"),
    "who": ("who",),
    "skill": ("skill", "success"),
    "fear": ("fear", "deed", "lesson"),
    "baby": ("baby", "nest", "mother"),
    "trouble": ("trouble", "reason", "fixed"),
}
# How many episodes a tale has, and how often (per cent): the long tail of the lengths.
EPISODES = {0: 22, 1: 27, 2: 19, 3: 12, 4: 8, 5: 5, 6: 3, 7: 2, 8: 1, 9: 1}
MICRO_SHARE = 0.08

ALTERNATIVES = re.compile(r"\[([^\[\]]*)\]")
RULE = re.compile(r"<([A-Za-z_]+)>")
ARTICLE = re.compile(r"\b([Aa])(?= [aeiou])")
SLOT = re.compile(r"\{(\w+)(?:\.(\w+))?\}")


class Tale:
    """One tale in the making: its own generator, its cast and values, and which lines it has used already.

    Args:
        invent: makes up a word with a generator for one of the keys of INVENTED, such as `invented_word`; without it,
            the tale has none but known words.
    """

    def __init__(self, seed: int, invent: Callable[[random.Random, str], str] | None = None):
        self.rng, self.invent = random.Random(seed), invent
        self.inventions: set[str] = set()
        self.used: set[str] = set()
        self.shape = self.rng.choices(list(SHAPES), list(SHAPES.values()))[0]
        kinds, traits = self.rng.sample(ANIMALS, 2), self.rng.sample(TRAITS, 2)
        hero = self.character("name", kinds[0], traits[0])
        friend = self.character("friend", kinds[1], traits[1], taken=hero.name)
        thing, home = self.thing(), Place(*self.rng.choice(PLACES))
        self.values = {"h": hero, "f": friend, "t": thing, "p": home, "place": home.short}

    def invented_for(self, what: str) -> str:
        """An invented name, kind or thing, or "" where it is to be a known one."""
        if not self.invent or self.rng.random() >= INVENTED[what]:
            return ""
        word = self.invent(self.rng, what)
        self.inventions.add(word)
        return word

    def character(self, role: str, kind: str, trait: str, taken: str = "") -> Character:
        """The hero (role "name") or the friend, whose name is not the one that is taken."""
        he = self.rng.choice(["she", "he"])
        names = FRIENDS[he]
        if role == "name" and self.rng.random() >= FRIENDS_AS_HEROES:
            names = NAMES[he]
        elif role == "friend" and self.shape == "open_two":
            names = NAMES[he] + FRIENDS[he]
        name = self.invented_for(role) or self.rng.choice([name for name in names if name != taken])
        if self.rng.random() < 0.3 and not (role == "friend" and self.shape == "open_two"):  # whose kinds differ
            kind, trait = self.rng.choice(CHILD[he]), self.rng.choice(TRAITS[:12])
        return Character(name, he, self.invented_for("kind") or kind, trait)

    def thing(self) -> Thing:
        adjective, noun = self.rng.choice(THINGS)
        return Thing(adjective, self.invented_for("thing") or noun)

    def choose(self, lines: list[str]) -> str:
        """A random line, one that the tale has not used yet while there is any."""
        line = self.rng.choice([line for line in lines if line not in self.used] or lines)
        self.used.add(line)
        return line

    def expand(self, text: str) -> str:
        """The text with every rule, alternative and slot replaced."""
        while match := RULE.search(text) or ALTERNATIVES.search(text) or SLOT.search(text):
            if match.re is RULE:
                new = self.expand_rule(match[1])
            elif match.re is ALTERNATIVES:
                new = self.rng.choice(match[1].split("|"))
            else:
                value = self.values[match[1]]
                new = getattr(value, match[2]) if match[2] else str(value)
            text = text[: match.start()] + new + text[match.end() :]
        return ARTICLE.sub(r"\1n", text.strip())

    def expand_rule(self, name: str) -> str:
        if name == "riddle":
            question, self.values["answer"] = self.rng.choice(RIDDLES)
            return f'{question}"'
        line = self.choose(self.rules[name.lower()])
        line = self.expand(line) if name[0].isupper() else line
        return line[0].upper() + line[1:] if name[0].isupper() else line

    @cached_property
    def text(self) -> str:
        """The whole tale: paragraphs with an empty line between them."""
        if self.rng.random() < MICRO_SHARE:
            return self.expand(self.open("micro", "<micro>"))
        quest = self.rng.choice(QUESTS)
        for key, names in VALUES.items():
            if key in quest:
                self.values.update(zip(names, self.rng.choice(quest[key]), strict=True))
        if "mother" in self.values:
            self.values["mother_low"] = self.values["mother"].replace("The", "the")
        count = self.rng.choices(list(EPISODES), list(EPISODES.values()))[0]
        episodes = quest["episodes"]
        told = sorted(self.rng.sample(range(len(episodes)), min(count, len(episodes))))
        habit = "<habit> " if self.rng.random() < 0.4 else ""
        moral = " <moral>" if self.rng.random() < 0.3 else ""
        opening = self.open(quest["name"], f"<opening> {habit}{self.choose(quest['want'])}")
        close = f"{self.choose(quest['turn'])} {self.choose(quest['answer'])}{moral} <ending>"
        paragraphs = [opening, *(episodes[i] for i in told), close]
        return "\n\n".join(self.expand(paragraph) for paragraph in paragraphs)

    def open(self, plot: str, text: str) -> str:
        """The text with its rules for the opening put in: its shape, and the words that hint at the plot."""
        self.rules = {**RULES, "opening": OPENINGS[self.shape], "plot_did": PLOT_DID[plot]}
        if self.shape == "open_two":  # the opening has told of the friend
            self.rules["friend"] = RULES["friend_known"]
        return text


def write_tale(seed: int, invent: Callable[[random.Random, str], str] | None = None) -> str:
    """The tale of this seed, the same on every machine; with `invent`, made-up names, kinds and things are in some."""
    return Tale(seed, invent).text


@cache
def lexicon() -> frozenset[str]:
    """Every word that the grammar writes, names apart, in small letters."""
    lists = [
        *RULES.values(),
        *PLOT_DID.values(),
        *(quest[k] for quest in QUESTS for k in ("want", "episodes", "turn", "answer")),
    ]
    texts = [line for lines in lists for line in lines]
    texts += [text for quest in QUESTS for key in VALUES if key in quest for row in quest[key] for text in row]
    texts += [text for row in RIDDLES + PLACES for text in row]
    texts += [*TRAITS, *ANIMALS, *CHILD["she"], *CHILD["he"], *(f"{a} {noun}" for a, noun in THINGS)]
    texts.append("he she him his her an")
    return frozenset(word.lower() for text in texts for word in re.findall("[A-Za-z]+", text))


if __name__ == "__main__":
    import sys

    for number in map(int, sys.argv[1:] or ["0"]):
        print(write_tale(number), end="\n\n---\n\n")
