"""How tales begin: openings of many shapes, in the notation of tale_grammar.py.

A reader may begin a tale with a name, a place, the weather, a question, a line of speech. Whatever the first sentence
leaves open, the next one tells: after `<tell_all>` the reader knows the hero's name, kind and home, after `<tell_kind>`
the kind and home of a hero whose name was given, after `<tell_name>` the name and home of a hero whose kind was given.
"""

# How many of a hundred tales begin in which shape (the rules below that start with "open_").
SHAPES = {
    "open_classic": 14, "open_scene": 18, "open_clause": 10, "open_name": 22, "open_kind": 16, "open_speech": 8,
    "open_told": 4, "open_two": 8,
}  # fmt: skip

# fmt: off
OPENINGS = {
    "open_classic": [
        "Once upon a time, {h.a} named {h} lived {p.at}.",
        "Once upon a time, {h.a} named {h} lived {p.at}.",
        "Once upon a time, there was {h.a} named {h} who lived {p.at}.",
        "Once upon a time, there was {h.a} named {h} who lived {p.at}.",
        "Once there was {h.a} named {h}. {h.He} lived {p.at}.",
        "There was once {h.a} named {h}, and {h.he} lived {p.at}.",
        "Long ago, {p.at}, there lived {h.a} named {h}.",
        "Far away, {p.at}, lived {h.a} named {h}.",
        "One <sky> morning, {h.a} named {h} woke up early. {h.He} lived {p.at}.",
        "In the days when the [winters|summers] were long, {h.a} named {h} lived {p.at}.",
        "This is the story of {h.a} named {h}, who lived {p.at}.",
        "Not so long ago, {h.a} named {h} lived {p.at}.",
    ],
    "open_scene": ["<scene> <tell_all>", "<scene> <tell_all>", "<scene> <scene> <tell_all>"],
    "open_clause": [
        "<clause> {h.a} named {h} <did>. {h.He} lived {p.at}.",
        "<clause> {h.a} named {h} <did>. {h.He} lived {p.at}.",
        "<clause> {h.a} <did>. <tell_name>",
        "<clause> {h.a} named {h} lived {p.at}.",
        "<clause> {h} <did>. <tell_kind>",
        "<clause> [a {h.kind}|the {h.kind}] <did>. <tell_name>",
        "<clause> there was {h.a} named {h}. {h.He} lived {p.at}.",
    ],
    "open_name": [
        "{h} <did>. <tell_kind>",
        "{h} <did>. <tell_kind>",
        "{h} <did>. <tell_kind>",
        "{h} <did> and <did>. <tell_kind>",
        "{h} <did>, but nobody [knew it|noticed|said a word]. <tell_kind>",
        "[One day|One morning|That night|Yesterday|Every morning|Today], {h} <did>. <tell_kind>",
        "[Little|Old|Young|Brave|Poor] {h} <did>. <tell_kind>",
        "{h} the {h.kind} <did>. {h.He} lived {p.at}.",
        "{h}, {h.a}, <did>. {h.He} lived {p.at}.",
        "{h} was {h.a}. {h.He} lived {p.at}.",
        "{h} was [tired|happy|sad|late|alone|cold|hungry|angry|in a hurry|afraid]. <tell_kind>",
        "{h} was [the smallest of seven|new in town|the best singer in the village|not like the others"
        "|always the first to wake up|never bored]. <tell_kind>",
        "{h} lived {p.at}. {h.He} was {h.a}.",
        "{h} lived {p.at} with {h.his} [sisters|brothers|family]. {h.He} was {h.a}.",
        "Nobody [believed|noticed|understood|helped] {h}. <tell_kind>",
        "[Everyone|The whole village|Each child in the town] knew {h}. <tell_kind>",
        "It was {h}'s [birthday|first day at school|turn|idea|favorite day]. <tell_kind>",
        "{h}'s [house was very small|pockets were empty|bed was cold|window was open|boots were wet"
        "|garden was full of weeds|head was full of dreams]. <tell_kind>",
        "When {h} [woke up|came home|opened the door|looked outside], [it was dark|the house was empty|it was snowing"
        "|something was different|nobody was there]. <tell_kind>",
        "If you had asked {h}, {h.he} would have said no. <tell_kind>",
        "There was nothing that {h} liked more than [rain|honey|music|the morning|a good story]. <tell_kind>",
        "Why did {h} [run|laugh|hide|stay at home]? <tell_kind>",
        "Poor {h}! <tell_kind>",
    ],
    "open_kind": [
        "The {h.kind} <did>. <tell_name>",
        "The {h.trait} {h.kind} <did>. <tell_name>",
        "The {h.trait} {h.kind} <did>. <tell_name>",
        "{h.A} <did>. <tell_name>",
        "{h.A} <did>. <tell_name>",
        "[One day|One night|One <sky> morning], {h.a} <did>. <tell_name>",
        "There was {h.a} who <did>. <tell_name>",
        "[Once|One day|On a <sky> <part_of_day>] [a {h.kind}|the {h.kind}] <did>. <tell_name>",
        "There [once was|was once|was] a {h.kind} [who|that] <did>. <tell_name>",
        "[Have you ever met|Do you know|Have you heard of] a {h.kind} [who|that] <did>? <tell_name>",
        "A {h.kind} <did>. <tell_name>",
        "The {h.kind} <did> and <did>. <tell_name>",
        "The {h.kind}'s [house was very small|pockets were empty|bed was cold|boots were wet]. <tell_name>",
        "The {h.trait} {h.kind} <did>, and <happening>. <tell_name>",
        "Nobody [believed|noticed|understood] the {h.trait} {h.kind}. <tell_name>",
        "{p.At} lived {h.a}. {h.His} name was {h}.",
        "{h.A} lived {p.at}. {h.His} name was {h}.",
        "What does a {h.kind} do [in the winter|when it rains|all day long]? <tell_name>",
        "In the whole world there was no {h.kind} like this one. <tell_name>",
    ],
    "open_speech": [
        '<speaks> {h}. <tell_kind>',
        '<speaks> {h}. "<says>" <tell_kind>',
        '<speaks> the {h.kind}. <tell_name>',
        '<speaks> the {h.trait} {h.kind}. <tell_name>',
        '<speaks> a [small|clear|soft|sleepy] voice. It was {h.a} named {h}, who lived {p.at}.',
        '"<says>" <tell_all>',
        '"My name is {h}," said the {h.kind}. {h.He} lived {p.at}.',
        '"[My name is|I am|They call me|You can call me] {h}," said {h.a}. {h.He} lived {p.at}.',
        "[My name is|I am|They call me|You may call me] {h}. So spoke {h.a} who lived {p.at}.",
        "[Hello|Good morning|Good evening], my name is {h}. So spoke {h.a} who lived {p.at}.",
    ],
    "open_told": [
        "[My grandmother|My grandfather|An old sailor|A traveler|The wind] once told me [a story|this story] about"
        " {h.a} named {h}. {h.He} lived {p.at}.",
        "Have you heard of {h}, the {h.kind} who <did>? {h.He} lived {p.at}.",
        "Do you know the story of {h} the {h.kind}? {h.He} lived {p.at}.",
        "This is the story of {h}, who <did>. <tell_kind>",
        "Let me tell you about {h}. <tell_kind>",
        "The tale of {h} begins on a <sky> [day|night]. <tell_kind>",
    ],
    # {f} is introduced here, so <friend> is something else in these tales; see Tale.write.
    "open_two": [
        "{h} and {f} [were best friends|lived next door to each other|did everything together|sat on the wall"
        "|could not sleep|were on their way home|were hungry|<did>]. <tell_two>",
        "[A {h.kind}|The {h.kind}] and [a {f.kind}|the {f.kind}] [were best friends|were neighbors|were always together"
        "|<did>]. The {h.kind} was named {h}, the {f.kind} was named {f}, and they lived {p.at}.",
        "{h} and {h.his} [friend|cousin|neighbor|playmate] {f} <did>. <tell_two>",
        "One <sky> day, {h} [met|went to see|waited for|wrote a letter to] {f}. <tell_two>",
        "There were once two friends, {h} and {f}. <tell_two>",
    ],
    "tell_two": [
        "{h} was {h.a}, {f} was {f.a}, and they lived {p.at}.",
        "{h} was {h.a}, and {f} was {f.a}. They lived {p.at}.",
    ],
    "tell_all": [
        "{h.A} named {h} lived {p.at}.",
        "There was {h.a} named {h} who lived {p.at}.",
        "In those days, {h.a} named {h} lived {p.at}.",
        "{p.At}, {h.a} named {h} [was already awake|looked out of the window|sat on the doorstep].",
        "It all began with {h.a} named {h}, who lived {p.at}.",
    ],
    "tell_kind": [
        "{h} was {h.a} who lived {p.at}.",
        "{h} was {h.a} and lived {p.at}.",
        "{h} was {h.a}, and {h.he} lived {p.at}.",
        "Now {h} was {h.a} who lived {p.at}.",
    ],
    "tell_name": [
        "{h.His} name was {h}, and {h.he} lived {p.at}.",
        "{h.His} name was {h}. {h.He} lived {p.at}.",
        "The {h.kind} was named {h} and lived {p.at}.",
        "The {h.kind}'s name was {h}, and {h.he} lived {p.at}.",
    ],
    # A whole first sentence that names nobody.
    "scene": [
        "It was a <sky> <part_of_day>.",
        "It was a <sky> <part_of_day>, and <happening>.",
        "It was <season>, and <happening>.",
        "<Season> [came early that year|was almost over|had just begun|was the best time of the year].",
        "<Happening>.",
        "<Happening>, and <happening>.",
        "[At night|In <season>|On Sundays|That year|After the rain|That morning], <happening>.",
        "The [village|town|forest|valley|house|harbor] was [asleep|quiet|empty|full of noise|far from everything].",
        "[Behind|Beside|Near|Above|Not far from] the [mill|river|bridge|old wall|church|lake|road] [stood|was]"
        " [an old house|a crooked tower|a tiny cottage|a tall tree|a garden|a well|a little shop].",
        "There is a [house|hill|door|garden|lake|road] that [nobody visits|is on no map|everyone has forgotten"
        "|only children can find].",
        "There was a [house|hill|bridge|mill|path|town] [by the sea|in the woods|far in the north"
        "|at the end of the road].",
        "Nobody [ever went into the forest|knew what was in the box|could sleep that night|remembered such a winter"
        "|lived in the old tower|had seen the sun for days].",
        "Everyone [was busy|was asleep|waited for the spring|talked about the storm|had gone to the market].",
        "Have you ever [seen a frog dance|heard a bell ring under water|talked to the moon|slept in a tree"
        "|been to the end of the world|lost something]?",
        "Do you know [what happened last winter|who lives in the woods|why the sea is salty|how a story begins"
        "|where the wind sleeps]?",
        "What [is behind the mountain|do stars dream of|happens when nobody looks|makes a good friend]?",
        "Something [strange|wonderful|new] happened [last <season>|in our village|that day|long ago].",
        "[Listen|Sit down|Come closer], and [I will tell you a story|you will hear something strange].",
        "[People say|They say|Everybody knows] that <happening_now>.",
        "This story [begins in the rain|is true|is very old|begins with a knock at the door].",
        "Knock, knock.",
        "[Crash|Splash|Bang|Oh no|Good morning]!",
        "There was a [knock at the door|light in the window|strange smell in the air|noise in the attic].",
        "The [clock|bell] struck [six|nine|twelve].",
    ],
    # The beginning of a first sentence, up to where its subject comes.
    "clause": [
        "It was a <sky> <part_of_day>, and",
        "It was a <sky> <part_of_day> when",
        "In the [days|years|times] when <happening>,",
        "In <season>, when <happening>,",
        "One <sky> <part_of_day>,",
        "[One day|One night|One <season>|Last <season>|Yesterday|Long ago|Many years ago],",
        "[When|While|Before|After|As] <happening>,",
        "On the [first|last] day of <season>,",
        "[On a|One] [Wednesday|Friday|Saturday|Sunday],",
        "On [Wednesday|Friday|Saturday|Sunday],",
        "On the [day|night] [of the great storm|before the feast|when everything changed],",
        "[Deep in the forest|High on a hill|Down by the river|Under the bridge|In the middle of the lake"
        "|At the end of the road|Behind the old mill|In a far country],",
        "<Happening>, and",
        "Because <happening>,",
    ],
    "season": ["spring", "summer", "autumn", "winter"],
    "part_of_day": ["morning", "day", "evening", "night", "afternoon"],
    "happening": [
        "the wind [sang in the trees|blew over the fields|knocked at the windows|smelled of salt]",
        "the rain [fell on the roofs|did not stop|drummed on the leaves|had stopped at last]",
        "the snow [covered the hills|was deep|began to melt|fell without a sound]",
        "the sun [was shining|came up slowly|went down behind the hills|was hot]",
        "the moon was [round|bright|thin|very low]",
        "the stars [were out|were very close]",
        "the leaves [turned yellow|were falling|danced in the street]",
        "the birds [were singing|had flown south|were quiet]",
        "the [apples|berries|plums] were [ripe|sweet]",
        "the streets were [empty|full of water|full of people]",
        "the river [was frozen|was high|ran fast]",
        "the nights were [long|cold|warm|short]",
        "the [winters|summers] were long",
        "the [bells|clocks] were ringing",
        "the fog [was thick|lay over the fields]",
        "everyone was [asleep|at home|at the market]",
        "the world was [still young|white|quiet]",
        "nobody was [awake|on the road|at home]",
        "the sea was [calm|wild|grey]",
        "the fire was [warm|almost out]",
        "the flowers [opened|smelled sweet]",
    ],
    "happening_now": [
        "the moon is made of cheese", "foxes can keep a secret", "every star has a name", "the old mill is empty",
        "nobody lives in the tower", "a good story never ends", "bears do not dance", "the wind can talk",
    ],
    # What a hero does in the first sentence; <plot_did> are the ones that this tale's plot explains.
    "did": ["<plot_did>", "<any_did>"],
    "any_did": [
        "looked at the moon", "could not sleep", "woke up very early", "was late", "ran through the rain",
        "loved the rain", "had never seen snow", "waited at the door", "sat on the stairs", "sat by the window",
        "had a plan", "had an idea", "liked to sing", "was hungry", "was tired", "closed the door", "opened one eye",
        "stood on the bridge", "laughed", "smiled", "counted the stars", "was alone", "went for a walk", "made soup",
        "swept the floor", "sat under a tree", "climbed a hill", "came home late", "had a strange dream",
        "walked along the shore", "drank a cup of tea", "watched the clouds", "was waiting for the spring",
        "had a very big nose", "wrote a letter", "painted the fence", "lit a candle", "danced in the kitchen",
        "wanted to be brave", "did not say a word", "was not like the others", "knew many songs", "whistled a tune",
        "jumped over a puddle", "hid behind a tree", "looked into the well", "put on a coat", "ate a whole pie",
    ],
    "speaks": [
        '"<exclamation>" [said|called|cried|shouted]',
        '"<question>" [asked|whispered]',
        '"<statement>," [said|whispered]',
    ],
    "says": ["<exclamation>", "<question>", "<statement>."],
    "exclamation": [
        "Good morning!", "Wake up!", "I am hungry!", "It is snowing!", "What a day!", "I have an idea!",
        "Look at that!", "Not again!", "Come here!", "I am not tired!", "Help!",
        "Hurry up!", "Wait!", "Let us go!", "Do not go!",
    ],
    "question": [
        "Is anybody there?", "Who is there?", "Where is everybody?", "Can you keep a secret?", "Where are you going?",
        "Did you hear that?", "What is that?", "Are you asleep?", "Why are you sad?", "How far is it?",
    ],
    "statement": [
        "I do not want to go home", "It is not fair", "This is a good day", "I am bored", "I had a strange dream",
        "Nobody listens to me", "I will be back soon", "We need a plan", "The sun is up", "It is too cold",
        "You are late", "I am not afraid", "I know a secret", "There is somebody at the door",
    ],
}

# What a hero does first, for each plot.
PLOT_DID = {
    "lost thing": ["had lost something", "was sad", "looked under the bed", "looked everywhere", "wanted to cry",
                   "kept a treasure in a box", "was looking for something", "turned the house upside down"],
    "see it": ["wanted to see the world", "had a dream", "had a wish", "looked at the road", "was bored at home",
               "had never left home", "did not want to stay at home", "looked at a map", "dreamed of far places"],
    "gift": ["was in a hurry", "packed a bag", "thought of somebody far away", "was making a gift", "got a letter",
             "had a surprise", "could not wait", "wanted to go on a visit"],
    "learn": ["wanted to learn something", "did not want to give up", "tried again", "fell down", "had a wish",
              "was the only one who could not do it", "watched the others", "wanted to be like the others"],
    "fear": ["had a secret", "did not want to go", "was afraid", "did not want to go outside", "hid under the blanket",
             "was not brave", "never talked about it", "said no", "stayed at home", "did not dare to look"],
    "quarrel": ["was angry", "did not want to share", "found something", "had a friend", "was in a bad mood",
                "had made a mistake", "was sorry", "wanted to be alone"],
    "bring home": ["heard a noise", "heard someone crying", "found something small", "went to the well",
                   "was out walking", "heard a small voice", "stopped and listened", "saw something in the grass"],
    "trouble at home": ["knew that something was wrong", "had bad news", "was worried", "had a question",
                        "wanted to help", "noticed it first", "asked why", "saw that something was different"],
    "micro": ["was happy", "was in the garden", "had a good day", "went outside", "played in the yard"],
}
# fmt: on
