"""Everyday sentences in English and German, written for the claims, which no model has seen."""

PAIRS = (
    (
        "Our neighbors sold their boat last summer.",
        "Unsere Nachbarn haben letzten Sommer ihr Boot verkauft.",
    ),
    (
        "Can you show me how this machine works?",
        "Können Sie mir zeigen, wie diese Maschine funktioniert?",
    ),
    ("She forgot her umbrella on the bus.", "Sie hat ihren Regenschirm im Bus vergessen."),
    (
        "I have never seen so much snow in April.",
        "Ich habe noch nie so viel Schnee im April gesehen.",
    ),
    ("If it rains tomorrow, we will stay at home.", "Wenn es morgen regnet, bleiben wir zu Hause."),
    ("The children are playing in the garden.", "Die Kinder spielen im Garten."),
    ("He asked me where I had bought the lamp.", "Er fragte mich, wo ich die Lampe gekauft hatte."),
    ("My brother wants to become a doctor.", "Mein Bruder möchte Arzt werden."),
    ("We were too tired to cook dinner.", "Wir waren zu müde, um das Abendessen zu kochen."),
    ("Nobody knew why the shop was closed.", "Niemand wusste, warum das Geschäft geschlossen war."),
    ("There is a small bridge behind the church.", "Hinter der Kirche gibt es eine kleine Brücke."),
    ("Please put the glasses back on the shelf.", "Bitte stell die Gläser zurück ins Regal."),
    ("Tom is older than both of his sisters.", "Tom ist älter als seine beiden Schwestern."),
    ("I would like to learn to play the violin.", "Ich möchte gerne Geige spielen lernen."),
    ("The letter that you sent has arrived.", "Der Brief, den du geschickt hast, ist angekommen."),
    ("Why didn't you tell us the truth?", "Warum hast du uns nicht die Wahrheit gesagt?"),
    (
        "They have been living in this village for ten years.",
        "Sie leben seit zehn Jahren in diesem Dorf.",
    ),
    ("The dog barked at the postman again.", "Der Hund hat den Postboten wieder angebellt."),
    ("You should drink a lot of water today.", "Du solltest heute viel Wasser trinken."),
    (
        "My grandmother told me a story about the war.",
        "Meine Großmutter erzählte mir eine Geschichte über den Krieg.",
    ),
    (
        "It was so dark that we couldn't find the key.",
        "Es war so dunkel, dass wir den Schlüssel nicht finden konnten.",
    ),
    ("Does this train stop in Cologne?", "Hält dieser Zug in Köln?"),
    (
        "I didn't know that you could speak Spanish.",
        "Ich wusste nicht, dass du Spanisch sprechen kannst.",
    ),
    ("The woman with the red hat is my teacher.", "Die Frau mit dem roten Hut ist meine Lehrerin."),
    ("He broke his leg while he was skiing.", "Er hat sich beim Skifahren das Bein gebrochen."),
    ("We need more time to finish the work.", "Wir brauchen mehr Zeit, um die Arbeit zu beenden."),
    ("Mary is cutting the bread with a knife.", "Maria schneidet das Brot mit einem Messer."),
    (
        "How long does it take to get to the airport?",
        "Wie lange dauert es, bis man zum Flughafen kommt?",
    ),
    ("The film was not as good as the book.", "Der Film war nicht so gut wie das Buch."),
    ("I think he is hiding something from us.", "Ich glaube, er verbirgt etwas vor uns."),
    (
        "Two men are carrying a table up the stairs.",
        "Zwei Männer tragen einen Tisch die Treppe hinauf.",
    ),
    ("She smiled, but she said nothing.", "Sie lächelte, aber sie sagte nichts."),
)
