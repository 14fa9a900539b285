// Answers to the page's questions: from the server, or stored in the page itself.

const storedElement = document.getElementById("stored");
const storedPage = storedElement ? JSON.parse(storedElement.textContent) : null;

/** Whether the page has no server, but answers that were computed beforehand. */
export const isStored = storedPage !== null;
/** The stored answers: situation, question and answer of each. */
export const storedAnswers = isStored ? storedPage.answers : [];

/** A question without an answer; the message has the words of the checks in Python. */
export class Refusal extends Error {}

async function ask(name, content) {
  let response;
  try {
    response = await fetch(name, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(content),
    });
  } catch {
    throw new Refusal("The server does not answer: start divisible explore again.");
  }
  const found = await response.json();
  if (!response.ok) throw new Refusal(found.error);
  return found;
}

function storedAnswer(question) {
  const key = JSON.stringify(question);
  const found = storedAnswers.find((each) => JSON.stringify(each.question) === key);
  if (!found) throw new Refusal("This page has no answer to that: run divisible explore.");
  return found.answer;
}

function storedWhy(question, rank, seconds) {
  const { events, reasons } = storedAnswer(question);
  const at = events.rank.findIndex(
    (each, i) => each === rank && events.end[i] > seconds && reasons[i][0],
  );
  if (at < 0) return { text: `Rank ${rank} has no more actions.`, chain: [] };
  return { text: reasons[at][0], chain: reasons[at][1] };
}

export async function fetchStart() {
  return isStored ? storedPage.start : ask("start", {});
}

export async function fetchAnswer(question) {
  return isStored ? storedAnswer(question) : ask("answer", { question });
}

export async function fetchReason(question, rank, seconds) {
  if (isStored) return storedWhy(question, rank, seconds);
  return ask("why", { question, rank, seconds });
}

export async function fetchMoved(question, rank, source, target) {
  if (isStored) throw new Refusal("This page has no server: run divisible explore.");
  return ask("move", { question, rank, source, target });
}
